"""Writers: `json` makes one document of a `Report`, and every other format is made of that. They know no front end."""
