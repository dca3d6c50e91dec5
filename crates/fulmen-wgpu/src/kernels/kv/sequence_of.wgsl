//! Helper function, called by one thread: `sequence_of(row)`. With `sequences`, expects the binding
//! `sequences` [m].
#if sequences
fn sequence_of(row: u32) -> u32 { return sequences[row]; }
#else
fn sequence_of(row: u32) -> u32 { return 0u; }
#endif
