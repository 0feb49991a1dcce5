"""What is measured on a graph: ranges, harm, agreement of every op, one op alone."""
