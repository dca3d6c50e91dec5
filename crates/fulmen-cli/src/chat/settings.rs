//! `/set`: what can be changed during a chat.

use std::fmt::Display;
use std::str::FromStr;

use fulmen_engine::GenerateOptions;
use fulmen_model::ModelError;

/// The settings, called as the options of the command.
pub(crate) const NAMES: &[&str] =
    &["temperature", "top-k", "top-p", "min-p", "repeat-penalty", "repeat-window", "max-tokens", "seed"];

/// Why a setting was not changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetError {
    #[error("there is no setting {name:?}; the settings are {}", NAMES.join(", "))]
    Unknown { name: String },
    #[error("{name} needs a number, not {value:?}")]
    NotANumber { name: String, value: String },
    #[error(transparent)]
    Refused(#[from] ModelError),
}

/// Every setting and its value, a line each.
pub(crate) fn list(options: &GenerateOptions) -> String {
    let line = |name: &&str| format!("{name:<16}{}", value(options, name));
    NAMES.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn value(options: &GenerateOptions, name: &str) -> String {
    let sampling = &options.sampling;
    match name {
        "temperature" => sampling.temperature.to_string(),
        "top-k" => sampling.top_k.to_string(),
        "top-p" => sampling.top_p.to_string(),
        "min-p" => sampling.min_p.to_string(),
        "repeat-penalty" => sampling.repeat_penalty.to_string(),
        "repeat-window" => sampling.repeat_window.to_string(),
        "max-tokens" if options.max_tokens == usize::MAX => "-1 (no limit)".to_owned(),
        "max-tokens" => options.max_tokens.to_string(),
        _ => sampling.seed.to_string(),
    }
}

/// Changes a setting; a value that is refused changes nothing. Returns the new value.
pub(crate) fn set(options: &mut GenerateOptions, name: &str, text: &str) -> Result<String, SetError> {
    let mut changed = options.clone();
    let sampling = &mut changed.sampling;
    let name = name.replace('_', "-");
    match name.as_str() {
        "temperature" => sampling.temperature = number(&name, text)?,
        "top-k" => sampling.top_k = number(&name, text)?,
        "top-p" => sampling.top_p = number(&name, text)?,
        "min-p" => sampling.min_p = number(&name, text)?,
        "repeat-penalty" => sampling.repeat_penalty = number(&name, text)?,
        "repeat-window" => sampling.repeat_window = number(&name, text)?,
        "max-tokens" if text == "-1" => changed.max_tokens = usize::MAX,
        "max-tokens" => changed.max_tokens = number(&name, text)?,
        "seed" => sampling.seed = number(&name, text)?,
        _ => return Err(SetError::Unknown { name }),
    }
    changed.sampling.validate()?;
    *options = changed;
    Ok(value(options, &name))
}

fn number<T: FromStr + Display>(name: &str, text: &str) -> Result<T, SetError> {
    text.parse().map_err(|_| SetError::NotANumber { name: name.to_owned(), value: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_changed_or_refused() {
        let mut options = GenerateOptions::default();
        assert_eq!(set(&mut options, "temperature", "0.25").unwrap(), "0.25");
        assert_eq!(set(&mut options, "top_k", "7").unwrap(), "7");
        assert_eq!(set(&mut options, "max-tokens", "12").unwrap(), "12");
        assert_eq!(set(&mut options, "max-tokens", "-1").unwrap(), "-1 (no limit)");
        let before = options.clone();
        for (name, value, words) in [
            ("warmth", "1", "the settings are temperature, top-k"),
            ("top-k", "-1", "top-k needs a number, not \"-1\""),
            ("temperature", "hot", "needs a number"),
            ("temperature", "-1", "the temperature must be"),
            ("top-p", "NaN", "top_p must be"),
        ] {
            let error = set(&mut options, name, value).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(options, before);
        assert_eq!(list(&options).lines().count(), NAMES.len());
    }
}
