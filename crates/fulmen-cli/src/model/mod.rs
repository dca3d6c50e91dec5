//! What the commands that run models share: finding them, options, loading with a bar, the memory floor, Ctrl-C.

pub(crate) mod find;
pub(crate) mod floor;
pub(crate) mod interrupt;
pub(crate) mod load;
pub(crate) mod prompt;
pub(crate) mod sampling;
pub(crate) mod stats;
pub(crate) mod story;

/// What people are told who name no model.
pub(crate) const NO_MODEL: &str = "\
no model given. Take a GGUF file of a Llama, Mistral, SmolLM2, Qwen2 or Qwen3 model and name it: \
fulmen run model.gguf \"Why is the sky blue?\" (`fulmen pull ORG/NAME` gets one from Hugging Face, \
`fulmen run ORG/NAME` runs it then)";
