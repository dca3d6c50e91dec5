//! Tells the linker, on systems where it asks, that the symbols of Python come from the interpreter.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
