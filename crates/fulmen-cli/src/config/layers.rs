//! The layers: defaults < file < environment < options.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use fulmen_hub::{Overrides, Settings};

use super::error::ConfigError;
use super::file::{self, FileValues};
use super::settings::{BUILTIN, SETTINGS, Setting};

/// The file and what it says.
#[derive(Debug, Default)]
pub(crate) struct Config {
    /// The file that was read.
    pub(crate) path: Option<PathBuf>,
    pub(crate) file: FileValues,
    /// The model of the file or the environment, unless it is the built-in one.
    model: Option<PathBuf>,
    /// Settings that are options of this command line, by their keys.
    pub(super) options: BTreeMap<&'static str, String>,
}

/// A value and where it came from.
#[derive(Debug, PartialEq)]
pub(crate) struct Resolved {
    /// `None` if there is no value, and the program decides.
    pub(crate) value: Option<String>,
    pub(crate) source: Source,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
    Default,
    /// The name of the option, without dashes.
    Option(&'static str),
    /// The line in the file.
    File(usize),
    /// The name of the variable.
    Environment(&'static str),
}

/// The setting with a key of the table.
fn known(key: &'static str) -> &'static Setting {
    super::settings::setting(key).expect("the key is in the table")
}

/// The value of a variable that is set and not empty.
fn variable(name: &'static str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// Where the file is if no option and no variable names one.
fn default_path() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG specification says to ignore relative paths.
    let xdg = folder("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
    let base = if cfg!(windows) {
        folder("APPDATA")
    } else if cfg!(target_vendor = "apple") {
        xdg.or_else(|| Some(folder("HOME")?.join("Library/Application Support")))
    } else {
        xdg.or_else(|| Some(folder("HOME")?.join(".config")))
    };
    base.map(|base| base.join("fulmen").join("config.toml"))
}

/// The file that `--config` or `FULMEN_CONFIG` names.
fn named_path(option: Option<PathBuf>) -> Option<PathBuf> {
    option.or_else(|| env::var_os("FULMEN_CONFIG").map(PathBuf::from))
}

impl Config {
    /// Where the file is, without reading it.
    pub(crate) fn unread(option: Option<PathBuf>) -> Config {
        let path = named_path(option).filter(|path| !path.as_os_str().is_empty());
        Config { path: path.or_else(default_path), ..Config::default() }
    }

    /// Reads the file that was named by `--config` or `FULMEN_CONFIG`, or the default one if it exists. An
    /// empty `FULMEN_CONFIG` means no file.
    pub(crate) fn load(option: Option<PathBuf>) -> Result<Config, ConfigError> {
        let path = match named_path(option) {
            Some(path) if path.as_os_str().is_empty() => return Config::default().with_model(),
            Some(path) => path,
            // A path that cannot be examined is reported when it is read.
            None => match default_path().filter(|path| !matches!(path.try_exists(), Ok(false))) {
                Some(path) => path,
                None => return Config::default().with_model(),
            },
        };
        let file = file::read(&path)?;
        Config { file, path: Some(path), ..Config::default() }.with_model()
    }

    /// This configuration with its model resolved.
    fn with_model(mut self) -> Result<Config, ConfigError> {
        let model = self.resolve(known("model"))?.value;
        self.model = model.filter(|model| model != BUILTIN).map(PathBuf::from);
        Ok(self)
    }

    /// The value of a setting, also of an option.
    pub(super) fn resolve_with_options(&self, setting: &Setting) -> Result<Resolved, ConfigError> {
        match (self.options.get(setting.key), setting.flag) {
            (Some(value), Some(flag)) => {
                Ok(Resolved { value: Some(value.clone()), source: Source::Option(flag) })
            }
            _ => self.resolve(setting),
        }
    }

    /// The value of a setting without options.
    pub(crate) fn resolve(&self, setting: &Setting) -> Result<Resolved, ConfigError> {
        for &name in setting.env {
            if let Some(value) = variable(name) {
                let value = value.into_string().map_err(|_| ConfigError::NotUtf8(name))?;
                if !setting.kind.accepts(&value) {
                    let expected = setting.kind.expected();
                    return Err(ConfigError::Variable { name, expected, got: value });
                }
                return Ok(Resolved { value: Some(value), source: Source::Environment(name) });
            }
        }
        // The folder of the hub's tools is in the environment, too.
        if setting.key == "hub.cache"
            && let Some(home) = variable("HF_HOME")
        {
            let cache = PathBuf::from(home).join("hub").to_string_lossy().into_owned();
            return Ok(Resolved { value: Some(cache), source: Source::Environment("HF_HOME") });
        }
        if let Some((value, line)) = self.file.values.get(setting.key) {
            return Ok(Resolved { value: Some(value.clone()), source: Source::File(*line) });
        }
        let value = match setting.key {
            "hub.cache" => Settings::from_env().ok().map(|hub| hub.cache.to_string_lossy().into_owned()),
            _ => Some(setting.default.to_owned()).filter(|value| !value.is_empty()),
        };
        Ok(Resolved { value, source: Source::Default })
    }

    /// The model of `run` and `chat` if none is named; `None` for the built-in model.
    pub(crate) fn default_model(&self) -> Option<&Path> {
        self.model.as_deref()
    }

    /// The model that an alias means.
    pub(crate) fn alias(&self, name: &str) -> Option<&str> {
        self.file.aliases.get(name).map(String::as_str)
    }

    /// What takes the place of the environment variables of the hub's own tools.
    pub(crate) fn hub(&self) -> Result<Overrides, ConfigError> {
        let value = |key| -> Result<Option<String>, ConfigError> {
            let resolved = self.resolve(known(key))?;
            Ok(resolved.value.filter(|_| resolved.source != Source::Default))
        };
        let token_file = value("hub.token-file")?.map(PathBuf::from);
        // The token itself, in the environment, comes before a file that the configuration names.
        let first = variable(known("hub.token-file").env[0]).is_some();
        let token_file = token_file.filter(|_| first || variable("HF_TOKEN").is_none());
        Ok(Overrides {
            endpoint: value("hub.endpoint")?,
            token_file,
            cache: value("hub.cache")?.map(PathBuf::from),
        })
    }

    /// The file with the key of a server.
    #[cfg(feature = "server")]
    pub(crate) fn server_key_file(&self) -> Result<Option<PathBuf>, ConfigError> {
        Ok(self.resolve(known("server-key-file"))?.value.map(PathBuf::from))
    }

    /// The settings of the hub.
    pub(crate) fn hub_settings(&self) -> Result<Settings, ConfigError> {
        Ok(Settings::from_env_with(&self.hub()?)?)
    }

    /// Gives the options of all commands the values of the file as their defaults.
    pub(crate) fn apply(&self, command: Command) -> Command {
        let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
        each_option(command, "", &|command, argument| {
            let flag = argument.get_long().map(str::to_owned);
            let found = SETTINGS
                .iter()
                .find(|setting| flag.as_deref().is_some_and(|flag| setting.applies_to(command, flag)));
            match found.and_then(|setting| self.file.values.get(setting.key)) {
                Some((value, _)) => argument.default_value(leak(value)),
                None => argument,
            }
        })
    }
}

/// Lets the environment set the options of all commands.
pub(crate) fn with_environment(command: Command) -> Command {
    each_option(command, "", &|command, argument| {
        let Some(flag) = argument.get_long().map(str::to_owned) else { return argument };
        let found = SETTINGS.iter().find(|setting| setting.applies_to(command, &flag));
        // An empty variable is as good as none.
        let set = |name| env::var_os(name).is_none_or(|value| !value.is_empty());
        match found.map(|setting| setting.env[0]) {
            Some(name) if set(name) => argument.env(name),
            Some(_) => argument.env(clap::builder::Resettable::Reset),
            None => argument,
        }
    })
}

/// Changes every argument of a command and of the commands below it. `path` is the command, such as `bench
/// model`.
fn each_option(command: Command, path: &str, change: &dyn Fn(&str, Arg) -> Arg) -> Command {
    let command = command.mut_args(|argument| change(path, argument));
    command.mut_subcommands(|below| {
        let name = format!("{path} {}", below.get_name());
        each_option(below, name.trim_start(), change)
    })
}

/// The settings that the arguments give as options.
pub(super) fn given_options(matches: &ArgMatches) -> BTreeMap<&'static str, String> {
    let mut matches = matches;
    while let Some((_, below)) = matches.subcommand() {
        matches = below;
    }
    let given = |flag: &'static str| {
        let id = flag.replace('-', "_");
        if !matches!(matches.try_contains_id(&id), Ok(true)) {
            return None;
        }
        let typed = matches.value_source(&id) == Some(ValueSource::CommandLine);
        let value = matches.get_raw(&id).filter(|_| typed)?.next()?;
        Some(value.to_string_lossy().into_owned())
    };
    SETTINGS.iter().filter_map(|setting| Some((setting.key, given(setting.flag?)?))).collect()
}

/// Whether the command of these arguments works without the file.
pub(crate) fn needs_no_file(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some(("completions" | "man" | "version", _)) => true,
        Some(("config", below)) => below.subcommand_name() == Some("path"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// The command at a path such as `bench model`.
    fn command_at(path: &str) -> Command {
        path.split(' ').fold(crate::Cli::command(), |command, name| {
            command.find_subcommand(name).unwrap_or_else(|| panic!("no command {path}")).clone()
        })
    }

    #[test]
    fn the_table_says_what_the_options_say() {
        for setting in SETTINGS {
            let Some(flag) = setting.flag else { continue };
            let with_flag = |command: &Command| {
                command.get_arguments().find(|argument| argument.get_long() == Some(flag)).cloned()
            };
            let mut options: Vec<Arg> = Vec::new();
            for &path in setting.commands {
                let found = with_flag(&command_at(path));
                options.push(found.unwrap_or_else(|| panic!("{path} has no --{flag}")));
            }
            options.extend(with_flag(&crate::Cli::command()));
            for option in options {
                let default = option.get_default_values().first().map_or("", |value| value.to_str().unwrap());
                assert_eq!(default, setting.default, "{}", setting.key);
            }
        }
    }

    #[test]
    fn the_device_of_the_file_is_that_of_every_command_that_takes_any() {
        let device = super::super::settings::setting("device").unwrap();
        // Each with its path: `bench model`.
        fn visit(command: &Command, path: &str, found: &mut Vec<String>) {
            let any = |argument: &&Arg| {
                argument.get_long() == Some("device")
                    && argument.get_default_values().first().is_some_and(|value| value == "auto")
            };
            if command.get_arguments().find(any).is_some() {
                found.push(path.to_owned());
            }
            for below in command.get_subcommands() {
                visit(below, format!("{path} {}", below.get_name()).trim_start(), found);
            }
        }
        let mut found = Vec::new();
        visit(&crate::Cli::command(), "", &mut found);
        // These take devices of wgpu alone, or kernels of a device that need not be there.
        found.retain(|path| !["bench batch", "bench matmul", "tune"].contains(&path.as_str()));
        let mut listed: Vec<String> = device.commands.iter().map(|&path| path.to_owned()).collect();
        found.sort();
        listed.sort();
        assert_eq!(found, listed);
    }

    #[test]
    fn values_of_the_file_are_defaults_of_the_options_they_belong_to() {
        let text = "context = 77\nkv = 'f32'\ndevice = 'cpu'\nthreads = 3\n";
        let file = file::parse(Path::new("c.toml"), text).unwrap();
        let command = Config { file, ..Config::default() }.apply(crate::Cli::command());
        let default = |args: &[&str], id: &str| {
            let mut matches = &command.clone().try_get_matches_from(args).unwrap();
            while let Some((_, below)) = matches.subcommand() {
                matches = below;
            }
            let values = matches.get_raw(id).into_iter().flatten();
            values.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(",")
        };
        assert_eq!(default(&["fulmen", "run", "x"], "context"), "77");
        assert_eq!(default(&["fulmen", "run", "x", "--context", "5"], "context"), "5");
        assert_eq!(default(&["fulmen", "chat"], "kv"), "f32");
        assert_eq!(default(&["fulmen", "bench", "model"], "device"), "cpu");
        assert_eq!(default(&["fulmen", "bench", "model"], "kv"), "f16", "benchmarks have their own");
        assert_eq!(default(&["fulmen", "tune"], "device"), "auto", "a command for wgpu alone");
        assert_eq!(default(&["fulmen", "quantize", "a", "b", "--type", "q8_0"], "threads"), "3");
    }
}
