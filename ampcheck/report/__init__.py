"""Writers: each takes a `Report` and turns it into what a person or a program reads. They know no front end."""
