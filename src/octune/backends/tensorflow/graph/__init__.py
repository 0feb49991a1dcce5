"""Reading, building and running a GraphDef."""
