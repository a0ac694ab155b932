"""The pytest hooks. Standard library and pytest only at import: nobody who does not pass --ampcheck pays for us."""
