//! One kernel for each op.

pub mod attention;
pub mod kv_store;
