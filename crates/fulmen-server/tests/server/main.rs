//! A server in this process, asked over loopback connections.

mod anthropic;
mod call_streams;
mod chat;
mod client;
mod coding_tools;
mod completions;
mod device;
mod embeddings;
mod fuzz;
mod guard;
mod load;
mod models;
mod ollama;
mod operation;
mod responses;
mod robustness;
mod server;
mod tls;
mod tools;
