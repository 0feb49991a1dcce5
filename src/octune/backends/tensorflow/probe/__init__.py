"""What is measured on a graph: ranges, harm, the error of every kernel, the time of one op."""
