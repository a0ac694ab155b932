"""The catalogue, one file a family. Each check is a pure function of the evidence; its docstring is its documentation."""
