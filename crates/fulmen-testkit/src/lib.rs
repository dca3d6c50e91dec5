//! The op table.
