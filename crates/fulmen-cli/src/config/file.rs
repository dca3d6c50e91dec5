//! The configuration file: TOML, with every mistake reported at its line and column.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::settings::{Kind, SETTINGS, Setting, setting};
use crate::model::suggest::nearest;

/// Size limit of the file.
const MAX_FILE: u64 = 1 << 20;

/// The table of the aliases.
const ALIASES: &str = "aliases";

/// What the file says.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct FileValues {
    /// Values by key, with their lines.
    pub(crate) values: BTreeMap<&'static str, (String, usize)>,
    /// Short names of models.
    pub(crate) aliases: BTreeMap<String, String>,
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<FileValues, ConfigError> {
    let failed = |error| ConfigError::Read { path: path.to_owned(), error };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        let error = io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {MAX_FILE} bytes"));
        return Err(failed(error));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| failed(io::Error::new(io::ErrorKind::InvalidData, "the file is not UTF-8")))?;
    parse(path, &text)
}

/// Parses the text of a file.
pub(crate) fn parse(path: &Path, text: &str) -> Result<FileValues, ConfigError> {
    let parser = Parser { path, text };
    let table = DeTable::parse(text).map_err(|error| {
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        parser.error(error.span().unwrap_or(0..0), message)
    })?;
    let mut file = FileValues::default();
    for (key, value) in table.get_ref() {
        match (key.get_ref().as_ref(), value.get_ref()) {
            (ALIASES, DeValue::Table(table)) => parser.aliases(table, &mut file)?,
            (name, DeValue::Table(table)) if is_table(name) => {
                for (key, value) in table {
                    parser.setting(&format!("{name}.{}", key.get_ref()), key, value, &mut file)?;
                }
            }
            (name, other) if is_table(name) || name == ALIASES => {
                let problem = format!("{name} must be a table, not {}", kind_of(other));
                return Err(parser.error(value.span(), problem));
            }
            (name, _) => parser.setting(name, key, value, &mut file)?,
        }
    }
    Ok(file)
}

/// Whether settings are in a table of this name.
fn is_table(name: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.key.split_once('.').is_some_and(|(table, _)| table == name))
}

struct Parser<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Parser<'_> {
    fn error(&self, at: Range<usize>, problem: impl Into<String>) -> ConfigError {
        let before = self.text.get(..at.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        ConfigError::At { path: self.path.to_owned(), line, column, problem: problem.into() }
    }

    fn setting(
        &self,
        key: &str,
        at: &Spanned<impl Sized>,
        value: &Spanned<DeValue<'_>>,
        file: &mut FileValues,
    ) -> Result<(), ConfigError> {
        let Some(setting) = setting(key) else {
            return Err(self.error(at.span(), unknown_key(key)));
        };
        let wrong = |got: String| {
            self.error(value.span(), format!("{key} must be {}, not {got}", setting.kind.expected()))
        };
        let text = as_text(setting, value.get_ref()).ok_or_else(|| wrong(kind_of(value.get_ref())))?;
        if !setting.kind.accepts(&text) {
            return Err(wrong(format!("{text:?}")));
        }
        let text = match setting.kind {
            Kind::Path => beside(self.path, &text),
            Kind::Text => with_home(&text),
            _ => text,
        };
        let line = self.text[..value.span().start].matches('\n').count() + 1;
        file.values.insert(setting.key, (text, line));
        Ok(())
    }

    fn aliases(&self, table: &DeTable<'_>, file: &mut FileValues) -> Result<(), ConfigError> {
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
            if name.is_empty() || !name.chars().all(known) {
                let problem = format!("the alias {name:?} may have letters, digits, and - _ . : only");
                return Err(self.error(key.span(), problem));
            }
            let target = value.get_ref().as_str().filter(|target| !target.is_empty()).ok_or_else(|| {
                let got = kind_of(value.get_ref());
                self.error(
                    value.span(),
                    format!("the alias {name} must be the name or path of a model, not {got}"),
                )
            })?;
            file.aliases.insert(name.to_owned(), with_home(target));
        }
        Ok(())
    }
}

fn unknown_key(key: &str) -> String {
    let keys = || SETTINGS.iter().map(|setting| setting.key);
    // A key without its table is meant more often than one with another spelling.
    let last = key.rsplit('.').next().unwrap_or(key);
    let moved = keys().find(|known| known.rsplit('.').next() == Some(&last.replace('_', "-")));
    match moved.or_else(|| nearest(key, keys()).into_iter().next()) {
        Some(near) => format!("unknown key {key:?}; did you mean {near}?"),
        None => format!("unknown key {key:?}; `fulmen config show` lists all keys"),
    }
}

/// A value as its option would be written; `None` if it has another type.
fn as_text(setting: &Setting, value: &DeValue<'_>) -> Option<String> {
    let integer = |digits: &str, radix| i128::from_str_radix(&digits.replace('_', ""), radix).ok();
    match (setting.kind, value) {
        (Kind::Integer { .. } | Kind::Number { .. }, DeValue::Integer(number)) => {
            integer(number.as_str(), number.radix()).map(|number| number.to_string())
        }
        (Kind::Number { .. }, DeValue::Float(number)) => {
            number.as_str().replace('_', "").parse::<f64>().ok().map(|number| number.to_string())
        }
        (Kind::Integer { .. } | Kind::Number { .. }, _) => None,
        (_, DeValue::String(text)) => Some(text.to_string()),
        _ => None,
    }
}

fn kind_of(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// A path with `~/` replaced by the home folder.
fn with_home(path: &str) -> String {
    let home = std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE")).map(PathBuf::from);
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest).to_string_lossy().into_owned(),
        _ => path.to_owned(),
    }
}

/// A path of the file; relative ones begin at its folder.
fn beside(file: &Path, path: &str) -> String {
    let folder = file.parent().unwrap_or(Path::new(""));
    folder.join(with_home(path)).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<FileValues, String> {
        parse(Path::new("/etc/c.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn every_setting_can_be_in_the_file() {
        let text = "device = 'cuda:1'\nmodel = \"org/name:Q8_0\"\ncontext = 8_192\nkv = 'q8_0'\n\
                    threads = 0x10\ncolor = 'never'\nsampling.temperature = 1\n\
                    sampling.top-k = 0\n[hub]\n\
                    endpoint = 'http://127.0.0.1:9'\ntoken-file = 'token'\ncache = '/c'\n\
                    [aliases]\nq = 'org/name'\n\"q:8b\" = '/m.gguf'\n";
        let file = parsed(text).unwrap();
        let value = |key: &str| file.values.get(key).map(|(value, line)| (value.as_str(), *line));
        assert_eq!(value("device"), Some(("cuda:1", 1)));
        assert_eq!(value("context"), Some(("8192", 3)));
        assert_eq!(value("threads"), Some(("16", 5)));
        assert_eq!(value("sampling.temperature"), Some(("1", 7)));
        assert_eq!(value("hub.token-file"), Some(("/etc/token", 11)));
        assert_eq!(file.aliases["q:8b"], "/m.gguf");
        assert_eq!(parsed(""), Ok(FileValues::default()));
    }

    #[test]
    fn mistakes_are_reported_where_they_are() {
        let cases = [
            ("devcie = 'cpu'", "1:1: unknown key \"devcie\"; did you mean device?"),
            ("\n  temperature = 1", "2:3: unknown key \"temperature\"; did you mean sampling.temperature?"),
            ("[sampling]\ntop_k = 1", "2:1: unknown key \"sampling.top_k\"; did you mean sampling.top-k?"),
            ("[sampling.more]\na = 1", "1:11: unknown key \"sampling.more\""),
            ("qqqqqqqqqqqq = 1", "1:1: unknown key \"qqqqqqqqqqqq\"; `fulmen config show` lists all"),
            ("threads = '4'", "1:11: threads must be a whole number from 1 to 1024, not \"4\""),
            ("threads = 0", "1:11: threads must be a whole number from 1 to 1024, not \"0\""),
            ("threads = 1.5", "1:11: threads must be"),
            ("context = 99999999999999999999999", "1:11: context must be a whole number from 1 to"),
            ("sampling.temperature = nan", "1:24: sampling.temperature must be a finite number"),
            ("device = 'gpu'", "1:10: device must be auto, cpu, wgpu, wgpu:N, cuda or cuda:N, not \"gpu\""),
            (
                "device = ['cpu']",
                "1:10: device must be auto, cpu, wgpu, wgpu:N, cuda or cuda:N, not an array",
            ),
            ("sampling = 1", "1:12: sampling must be a table, not 1"),
            ("aliases = 'x'", "1:11: aliases must be a table"),
            ("[aliases]\nq = 1", "2:5: the alias q must be the name or path of a model, not 1"),
            ("[aliases]\n'a/b' = 'x'", "2:1: the alias \"a/b\" may have"),
            ("device = ", "1:10: "),
            ("device = 'cpu'\ndevice = 'cpu'", "2:1: "),
            ("model = 'é'\nkv = 'ü", "2:"),
            ("[aliases]\né = 'x'", "2:1: "),
        ];
        for (text, message) in cases {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with(&format!("/etc/c.toml:{message}")), "{text:?}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
