//! Tokenizers and chat templates.

use fulmen::model::gguf::Metadata;
use fulmen::model::source::{self, ModelSource};
use fulmen::model::template::{ChatOptions, ChatTemplate};
use fulmen::model::tokenizer::{Special, Tokenizer as Inner};
use fulmen::prelude::{Model, ModelError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Map, Value};

use crate::chat::{self, AnswerReader, Tools};
use crate::failure::{Failure, Kind};
use crate::worker::detached;

/// Where a tokenizer lives.
enum Holder {
    Model(Model),
    Own { tokenizer: Box<Inner>, metadata: Box<Metadata> },
}

/// A tokenizer with its chat template.
#[pyclass(frozen, module = "fulmen._fulmen")]
pub(crate) struct Tokenizer {
    holder: Holder,
}

impl Tokenizer {
    pub(crate) fn of_model(model: &Model) -> Result<Tokenizer, Failure> {
        match model.tokenizer() {
            Some(_) => Ok(Tokenizer { holder: Holder::Model(model.clone()) }),
            None => Err(ModelError::Without { what: "tokenizer" }.into()),
        }
    }

    fn of_source(source: &dyn ModelSource) -> Result<Tokenizer, Failure> {
        let tokenizer = Inner::from_source(source)?.ok_or(ModelError::Without { what: "tokenizer" })?;
        let metadata = Box::new(source.metadata().clone());
        Ok(Tokenizer { holder: Holder::Own { tokenizer: Box::new(tokenizer), metadata } })
    }

    fn inner(&self) -> Result<&Inner, Failure> {
        match &self.holder {
            Holder::Model(model) => {
                model.tokenizer().ok_or_else(|| ModelError::Without { what: "tokenizer" }.into())
            }
            Holder::Own { tokenizer, .. } => Ok(tokenizer),
        }
    }

    fn template(&self) -> Result<Option<ChatTemplate>, Failure> {
        Ok(match &self.holder {
            Holder::Model(model) => model.chat_template()?,
            Holder::Own { tokenizer, metadata } => ChatTemplate::of_model(metadata, tokenizer)?,
        })
    }

    /// A template by its text or the name of its family; that of the model without one.
    fn chosen_template(&self, template: Option<&str>) -> Result<ChatTemplate, Failure> {
        Ok(match template {
            Some(source) if source.contains(['{', '\n']) => ChatTemplate::new(source)?,
            Some(name) => ChatTemplate::named(name)?,
            None => self.template()?.ok_or(ModelError::Without { what: "chat template" })?,
        })
    }

    fn check(&self, ids: &[u32]) -> Result<(), Failure> {
        let vocabulary = self.inner()?.vocab_size();
        match ids.iter().position(|&id| id as usize >= vocabulary) {
            None => Ok(()),
            Some(at) => {
                let (token, vocabulary) = (ids[at], u32::try_from(vocabulary).unwrap_or(u32::MAX));
                Err(ModelError::Token { token, at, vocabulary }.into())
            }
        }
    }
}

#[pymethods]
impl Tokenizer {
    /// Reads the tokenizer of a model file or folder, without its weights.
    #[staticmethod]
    #[pyo3(signature = (path=None))]
    fn load(py: Python<'_>, path: Option<String>) -> PyResult<Tokenizer> {
        detached(py, || match path {
            Some(path) => Tokenizer::of_source(&*source::open(crate::loaded::find(&path)?)?),
            None => Tokenizer::of_source(&*source::from_bytes(crate::story::story_model())?),
        })
    }

    /// The tokens of a text. `prompt`: with BOS and EOS where the model wants them. `special`: text of
    /// control tokens becomes these tokens.
    fn encode(&self, py: Python<'_>, text: &str, prompt: bool, special: bool) -> PyResult<Vec<u32>> {
        let special = if special { Special::Parse } else { Special::AsText };
        let tokenizer = self.inner()?;
        detached(py, || {
            Ok(if prompt { tokenizer.encode_prompt(text, special) } else { tokenizer.encode(text, special) })
        })
    }

    /// The text of tokens.
    fn decode(&self, ids: Vec<u32>, special: bool) -> PyResult<String> {
        self.check(&ids)?;
        let tokenizer = self.inner()?;
        let text = if special { tokenizer.decode_with_special(&ids) } else { tokenizer.decode(&ids) };
        Ok(text.map_err(Failure::from)?)
    }

    /// The text of a token as the file has it; `None` for a token that there is not.
    fn token(&self, id: u32) -> PyResult<Option<String>> {
        Ok(self.inner()?.token(id).map(str::to_owned))
    }

    /// The bytes of a token.
    fn token_bytes<'py>(&self, py: Python<'py>, id: u32) -> PyResult<Bound<'py, PyBytes>> {
        self.check(&[id])?;
        Ok(PyBytes::new(py, self.inner()?.token_bytes(id).map_err(Failure::from)?))
    }

    /// The control token with this text.
    fn special_token(&self, text: &str) -> PyResult<Option<u32>> {
        Ok(self.inner()?.special_token(text))
    }

    /// The number of tokens.
    fn vocab_size(&self) -> PyResult<usize> {
        Ok(self.inner()?.vocab_size())
    }

    /// The token that begins a text.
    fn bos(&self) -> PyResult<Option<u32>> {
        Ok(self.inner()?.bos())
    }

    /// The token that ends a text.
    fn eos(&self) -> PyResult<Option<u32>> {
        Ok(self.inner()?.eos())
    }

    /// The tokens that end generation.
    fn ends(&self) -> PyResult<Vec<u32>> {
        Ok(self.inner()?.ends().to_vec())
    }

    /// Whether there is a chat template.
    fn has_chat_template(&self) -> PyResult<bool> {
        Ok(self.template()?.is_some())
    }

    /// The text and the tokens of a conversation.
    #[pyo3(signature = (messages, add_generation_prompt, thinking=None, variables=None, template=None))]
    fn chat_prompt(
        &self,
        py: Python<'_>,
        messages: &str,
        add_generation_prompt: bool,
        thinking: Option<bool>,
        variables: Option<&str>,
        template: Option<&str>,
    ) -> PyResult<(String, Vec<u32>)> {
        detached(py, || {
            let messages = chat::messages(messages)?;
            let template = self.chosen_template(template)?;
            let variables: Map<String, Value> =
                variables.map(|json| chat::parsed("the variables", json)).transpose()?.unwrap_or_default();
            let options = ChatOptions {
                add_generation_prompt,
                thinking,
                variables: variables.into_iter().collect(),
                ..ChatOptions::default()
            };
            let prompt = template.prompt(self.inner()?, &messages, &options)?;
            Ok((prompt.text, prompt.tokens))
        })
    }

    /// The tokens of a conversation that is to be answered, and what reads the answer. `constrained`: the
    /// answer must match something, so it has no thoughts. A call that is required must match, too.
    #[pyo3(signature = (
        messages, constrained, thinking=None, template=None, tools=None, tool_choice=None, several_calls=true
    ))]
    #[allow(clippy::too_many_arguments)]
    fn conversation(
        &self,
        py: Python<'_>,
        messages: &str,
        constrained: bool,
        thinking: Option<bool>,
        template: Option<&str>,
        tools: Option<&str>,
        tool_choice: Option<&str>,
        several_calls: bool,
    ) -> PyResult<(Vec<u32>, AnswerReader)> {
        detached(py, || {
            let messages = chat::messages(messages)?;
            let template = self.chosen_template(template)?;
            let tools = Tools::new(tools.unwrap_or("[]"), tool_choice, several_calls)?;
            let grammar = tools.grammar(template.tool_format().unwrap_or_default(), self.inner()?)?;
            if constrained && grammar.is_some() {
                let message = "chat: a required call cannot have a schema, regex or grammar of its own";
                return Err(Failure::new(Kind::Argument, message));
            }
            // The grammar of a required call has the thoughts where messages have channels.
            let constrained = constrained || (grammar.is_some() && !template.has_channels());
            let several = tools.several();
            let thinking = if constrained { Some(false) } else { thinking };
            let options = ChatOptions { thinking, ..ChatOptions::default() };
            let tokenizer = self.inner()?;
            let (prompt, parser) =
                template.prompt_with_tools(tokenizer, messages, tools.told(), options, constrained)?;
            Ok((prompt.tokens, AnswerReader::new(parser, tokenizer, grammar, several)))
        })
    }
}
