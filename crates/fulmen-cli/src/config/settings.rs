//! The table of settings: what the configuration file, the environment and options may say. Parsing, `fulmen
//! config show` and `docs/configuration.md` read it.

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Its key in the file, with its table: `sampling.temperature`.
    pub(crate) key: &'static str,
    /// Its environment variables. The first one that is set counts.
    pub(crate) env: &'static [&'static str],
    /// Its option, without dashes.
    pub(crate) flag: Option<&'static str>,
    /// The commands whose option it is, such as `run` or `bench model`; empty for all that have the option.
    pub(crate) commands: &'static [&'static str],
    pub(crate) kind: Kind,
    /// The value if nobody sets one; empty if there is none.
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
}

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Text,
    Device,
    Integer { least: u64, most: u64 },
    Number { least: f64, most: f64 },
    Path,
    Url,
    OneOf(&'static [&'static str]),
}

/// The value of `model` for the built-in model.
pub(crate) const BUILTIN: &str = "builtin";

/// Commands that generate text.
const GENERATE: &[&str] = &["run", "chat"];

/// Commands that ask a running server.
const SERVER_COMMANDS: &[&str] = if cfg!(feature = "server") { &["ps", "stop"] } else { &[] };

/// Commands that run on any device. Others measure wgpu alone, or list devices of every kind.
const ANY_DEVICE: &[&str] = &[
    "run",
    "chat",
    "serve",
    "devices",
    "doctor",
    "ops check",
    "ops perf",
    "bench collective",
    "bench decode",
    "bench divergence",
    "bench engine",
    "bench matrix",
    "bench parallel",
    "bench prefill",
    "bench model",
    "bench perplexity",
    "bench serve",
];

/// All settings, in the order in which they are shown.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        key: "device",
        env: &["FULMEN_DEVICE"],
        flag: Some("device"),
        commands: ANY_DEVICE,
        kind: Kind::Device,
        default: "auto",
        help: "Device to use: `auto`, `cpu`, `wgpu`, `wgpu:N`, `cuda` or `cuda:N`",
    },
    Setting {
        key: "model",
        env: &["FULMEN_MODEL"],
        flag: None,
        commands: GENERATE,
        kind: Kind::Text,
        default: BUILTIN,
        help: "Model of `run`, `chat` and `serve` if none is named: a path, a name, an alias, or `builtin`",
    },
    Setting {
        key: "context",
        env: &["FULMEN_CONTEXT"],
        flag: Some("context"),
        commands: GENERATE,
        kind: Kind::Integer { least: 1, most: u32::MAX as u64 },
        default: "",
        help: "Context length in tokens; by default the model's own up to 4096, or what a prompt needs",
    },
    Setting {
        key: "kv",
        env: &["FULMEN_KV"],
        flag: Some("kv"),
        commands: GENERATE,
        kind: Kind::OneOf(&["f16", "q8_0", "f32"]),
        default: "f16",
        help: "Type of the KV cache",
    },
    Setting {
        key: "threads",
        env: &["FULMEN_THREADS"],
        flag: Some("threads"),
        commands: &[],
        kind: Kind::Integer { least: 1, most: 1024 },
        default: "",
        help: "CPU threads; by default all hardware threads",
    },
    Setting {
        key: "color",
        env: &["FULMEN_COLOR"],
        flag: Some("color"),
        commands: &[],
        kind: Kind::OneOf(&["auto", "always", "never"]),
        default: "auto",
        help: "Colored output; `auto` means on a terminal, unless `NO_COLOR` is set",
    },
    Setting {
        key: "sampling.temperature",
        env: &["FULMEN_TEMPERATURE"],
        flag: Some("temperature"),
        commands: GENERATE,
        kind: Kind::Number { least: 0.0, most: f32::MAX as f64 },
        default: "0.8",
        help: "Sampling temperature; 0 always takes the most likely token",
    },
    Setting {
        key: "sampling.top-k",
        env: &["FULMEN_TOP_K"],
        flag: Some("top-k"),
        commands: GENERATE,
        kind: Kind::Integer { least: 0, most: u32::MAX as u64 },
        default: "40",
        help: "Sample from the K most likely tokens; 0 for all",
    },
    Setting {
        key: "sampling.top-p",
        env: &["FULMEN_TOP_P"],
        flag: Some("top-p"),
        commands: GENERATE,
        kind: Kind::Number { least: 0.0, most: 1.0 },
        default: "0.95",
        help: "Sample from the most likely tokens whose probabilities add up to P; 1 for all",
    },
    Setting {
        key: "sampling.min-p",
        env: &["FULMEN_MIN_P"],
        flag: Some("min-p"),
        commands: GENERATE,
        kind: Kind::Number { least: 0.0, most: 1.0 },
        default: "0.05",
        help: "Sample from tokens at least P times as likely as the most likely one; 0 for all",
    },
    Setting {
        key: "sampling.seed",
        env: &["FULMEN_SEED"],
        flag: Some("seed"),
        commands: GENERATE,
        kind: Kind::Integer { least: 0, most: u64::MAX },
        default: "",
        help: "Random seed; by default a new one for each run",
    },
    Setting {
        key: "server",
        env: &["FULMEN_SERVER"],
        flag: Some("server"),
        commands: SERVER_COMMANDS,
        kind: Kind::Url,
        default: "http://127.0.0.1:8080",
        help: "Server that `ps` and `stop` ask",
    },
    Setting {
        key: "server-key-file",
        env: &["FULMEN_SERVER_KEY_FILE"],
        flag: None,
        commands: &[],
        kind: Kind::Path,
        default: "",
        help: "File with the API key for `run --server`, `chat --server`, `ps` and `stop`",
    },
    Setting {
        key: "hub.endpoint",
        env: &["FULMEN_HUB_ENDPOINT", "HF_ENDPOINT"],
        flag: None,
        commands: &[],
        kind: Kind::Url,
        default: fulmen_hub::DEFAULT_ENDPOINT,
        help: "Server that models are downloaded from",
    },
    Setting {
        key: "hub.token-file",
        env: &["FULMEN_HUB_TOKEN_FILE", "HF_TOKEN_PATH"],
        flag: None,
        commands: &[],
        kind: Kind::Path,
        default: "",
        help: "File with the access token for gated and private models; `HF_TOKEN` has the token itself",
    },
    Setting {
        key: "hub.cache",
        env: &["FULMEN_HUB_CACHE", "HF_HUB_CACHE"],
        flag: None,
        commands: &[],
        kind: Kind::Path,
        default: "",
        help: "Folder of downloaded models; by default `hub` in `HF_HOME`, or `~/.cache/huggingface/hub`",
    },
];

/// The setting with a key.
pub(crate) fn setting(key: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.key == key)
}

impl Setting {
    /// Whether it is the option `flag` of a command.
    pub(crate) fn applies_to(&self, command: &str, flag: &str) -> bool {
        self.flag == Some(flag) && (self.commands.is_empty() || self.commands.contains(&command))
    }
}

/// `a, b or c`.
fn one_of<T: AsRef<str>>(values: &[T]) -> String {
    let values: Vec<&str> = values.iter().map(AsRef::as_ref).collect();
    match values.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

impl Kind {
    /// What a value must be, in words.
    pub(crate) fn expected(self) -> String {
        match self {
            Kind::Text => "text".to_owned(),
            Kind::Device => one_of(&crate::select::device_forms()),
            Kind::Integer { least, most: u64::MAX } => format!("a whole number of at least {least}"),
            Kind::Integer { least, most } => format!("a whole number from {least} to {most}"),
            Kind::Number { least, most } if most <= 1.0 => format!("a number from {least} to {most}"),
            Kind::Number { least, .. } => format!("a finite number of at least {least}"),
            Kind::Path => "a path".to_owned(),
            Kind::Url => "a URL that starts with https:// or http://".to_owned(),
            Kind::OneOf(values) => one_of(values),
        }
    }

    /// Whether a text is such a value.
    pub(crate) fn accepts(self, text: &str) -> bool {
        match self {
            Kind::Text | Kind::Path => !text.is_empty() && !text.contains('\0'),
            Kind::Device => crate::select::parse_device(text).is_ok(),
            Kind::Integer { least, most } => {
                text.parse::<u64>().is_ok_and(|number| (least..=most).contains(&number))
            }
            Kind::Number { least, most } => {
                text.parse::<f64>().is_ok_and(|number| (least..=most).contains(&number))
            }
            Kind::Url => {
                let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
                rest.is_some_and(|rest| !rest.is_empty())
            }
            Kind::OneOf(values) => values.contains(&text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_names_follow_one_pattern() {
        for setting in SETTINGS {
            let Setting { key, env, flag, default, .. } = *setting;
            assert!(default.is_empty() || setting.kind.accepts(default), "{key}");
            assert!(env[0].starts_with("FULMEN_"), "{key}");
            let name = key.strip_prefix("sampling.").unwrap_or(key);
            assert_eq!(env[0], format!("FULMEN_{}", name.replace(['.', '-'], "_").to_uppercase()));
            assert!(flag.is_none_or(|flag| flag == name), "{key}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let accepts = |key: &str, text: &str| setting(key).unwrap().kind.accepts(text);
        for (key, text) in [("threads", "1"), ("sampling.top-p", "1"), ("device", "wgpu:1"), ("kv", "f32")] {
            assert!(accepts(key, text), "{key} {text}");
        }
        let wrong = [
            ("threads", "0"),
            ("threads", "1025"),
            ("threads", "-1"),
            ("context", "4294967296"),
            ("sampling.temperature", "NaN"),
            ("sampling.temperature", "inf"),
            ("sampling.temperature", "-0.1"),
            ("sampling.min-p", "1.1"),
            ("device", "gpu"),
            ("kv", "q4_0"),
            ("model", ""),
            ("hub.endpoint", "ftp://x"),
            ("hub.endpoint", "https://"),
        ];
        for (key, text) in wrong {
            assert!(!accepts(key, text), "{key} {text}");
        }
    }
}
