//! The engine for Python: the module `fulmen._fulmen`, on which the package `fulmen` is built.
//!
//! - **Two layers.** This one has the calls that wait or move data, with plain arguments. The package around
//!   it (`python/fulmen`) has what is convenient in Python: keyword arguments, dataclasses, operators,
//!   `async for`. Type checkers see the package's own annotations, and of this layer `_fulmen.pyi`.
//! - **Waiting never holds the GIL.** Models run in threads of their own, which never touch Python
//!   (`worker`); the calling thread waits, handles signals, and calls callbacks.
//! - **Errors are exceptions** with the words of Rust (`failure`). A panic would be a defect and is an
//!   exception, too.
//! - **After `fork`** objects of the parent give an error in the child, and are not dropped there.

mod batch;
mod cancel;
mod chat;
mod device;
mod embed;
mod failure;
mod generate;
mod gguf;
mod graph;
mod loaded;
mod logs;
mod matmul_cache;
mod model;
mod options;
mod process;
mod story;
mod stream;
mod tokenizer;
mod worker;

use pyo3::prelude::*;

/// The engine.
#[pymodule]
fn _fulmen(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    device::start();
    logs::start();
    worker::start();
    module.add_class::<batch::BatchValue>()?;
    module.add_class::<batch::CommandBatch>()?;
    module.add_class::<cancel::CancelToken>()?;
    module.add_class::<chat::AnswerReader>()?;
    module.add_class::<gguf::GgufReader>()?;
    module.add_class::<graph::Builder>()?;
    module.add_class::<graph::GraphTensor>()?;
    module.add_class::<graph::Program>()?;
    module.add_class::<matmul_cache::MatmulCache>()?;
    module.add_class::<model::Model>()?;
    module.add_class::<options::Options>()?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<tokenizer::Tokenizer>()?;
    module.add_function(wrap_pyfunction!(device::devices, module)?)?;
    module.add_function(wrap_pyfunction!(device::unavailable, module)?)?;
    module.add_function(wrap_pyfunction!(gguf::block_of, module)?)?;
    module.add_function(wrap_pyfunction!(gguf::dequantize, module)?)?;
    module.add_function(wrap_pyfunction!(gguf::quantize_array, module)?)?;
    module.add_function(wrap_pyfunction!(gguf::quantize_file, module)?)?;
    module.add_function(wrap_pyfunction!(gguf::recipes, module)?)?;
    module.add_function(wrap_pyfunction!(gguf::story_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(gguf::write_gguf, module)?)?;
    module.add_function(wrap_pyfunction!(logs::log_record, module)?)?;
    module.add_function(wrap_pyfunction!(model::find_model, module)?)?;
    module.add_function(wrap_pyfunction!(model::pull, module)?)?;
    module.add_function(wrap_pyfunction!(worker::shutdown, module)?)?;
    Ok(())
}
