//! The admission table, row by row.
