//! The configuration: which layer wins, what mistakes say, and what `fulmen config` prints.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use common::{fulmen, output};
use serde_json::Value;

/// A folder with a configuration file.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(text: &str) -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        fs::write(folder.file(), text).unwrap();
        folder
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("c.toml")
    }

    /// The command with this file and without the environment of the tests.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = fulmen(args);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("FULMEN_") || text.starts_with("HF_") {
                command.env_remove(&name);
            }
        }
        command.env("FULMEN_CONFIG", self.file()).env("HOME", self.0.path());
        command
    }

    fn show(&self, change: impl FnOnce(&mut Command)) -> Value {
        let mut command = self.command(&["config", "show", "--json"]);
        change(&mut command);
        let (stdout, stderr, code) = output(&mut command);
        assert_eq!(code, Some(0), "{stderr}");
        serde_json::from_str(&stdout).unwrap()
    }
}

/// The value of a setting and where it came from.
fn value(shown: &Value, key: &str) -> (String, String) {
    let settings = shown["settings"].as_array().unwrap();
    let setting = settings.iter().find(|setting| setting["key"] == key).unwrap();
    let text = |name: &str| setting[name].as_str().unwrap_or("").to_owned();
    (text("value"), text("source"))
}

fn pair(value: &str, source: &str) -> (String, String) {
    (value.to_owned(), source.to_owned())
}

const FILE: &str = "\
device = 'cpu'
context = 77
threads = 3
[sampling]
temperature = 0
seed = 5
[hub]
cache = 'models'
";

#[test]
fn each_layer_overrides_the_one_below() {
    let folder = Folder::new(FILE);
    let shown = folder.show(|_| ());
    assert_eq!(shown["file"], folder.file().to_str().unwrap());
    assert_eq!(value(&shown, "device"), pair("cpu", "file"));
    assert_eq!(value(&shown, "sampling.temperature"), pair("0", "file"));
    assert_eq!(value(&shown, "sampling.top-k"), pair("40", "default"));
    assert_eq!(value(&shown, "hub.cache"), pair(folder.0.path().join("models").to_str().unwrap(), "file"));
    assert_eq!(shown["settings"][0]["line"], 1);
    let shown = folder.show(|command| {
        command.env("FULMEN_DEVICE", "wgpu:1").env("FULMEN_THREADS", "").env("HF_HOME", "/hf");
    });
    assert_eq!(value(&shown, "device"), pair("wgpu:1", "environment"));
    assert_eq!(value(&shown, "threads"), pair("3", "file"), "an empty variable is not set");
    assert_eq!(value(&shown, "hub.cache"), pair("/hf/hub", "environment"));
    let shown = folder.show(|command| {
        command.env("FULMEN_CONFIG", "");
    });
    assert_eq!((shown["file"].as_str(), value(&shown, "device")), (None, pair("auto", "default")));
    // Options come first.
    let mut command = folder.command(&["--color", "never", "config", "show", "--json"]);
    let (stdout, stderr, code) = output(command.env("FULMEN_COLOR", "always"));
    assert_eq!(code, Some(0), "{stderr}");
    let shown: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(value(&shown, "color"), pair("never", "option"));
    let (stdout, ..) = output(&mut folder.command(&["config", "show", "--color", "never"]));
    let line = stdout.lines().find(|line| line.starts_with("color")).unwrap();
    assert!(line.contains("never") && line.ends_with("--color"), "{stdout}");
    // As text.
    let (stdout, ..) = output(folder.command(&["config", "show"]).env("FULMEN_KV", "q8_0"));
    let line = |key: &str| stdout.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("device").contains("cpu") && line("device").ends_with("line 1 of the file"), "{stdout}");
    assert!(line("kv").contains("q8_0") && line("kv").ends_with("FULMEN_KV"), "{stdout}");
}

/// Runs the built-in model and returns its JSON result.
fn told(command: &mut Command) -> Value {
    let (stdout, stderr, code) = output(command);
    assert_eq!(code, Some(0), "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

#[test]
fn commands_use_the_values() {
    let folder = Folder::new(FILE);
    let args = ["run", "Once upon a time", "-n", "4", "--json"];
    let result = told(&mut folder.command(&args));
    assert_eq!((&result["seed"], &result["device"]), (&5.into(), &"cpu".into()));
    // Environment before the file, options before both.
    assert_eq!(told(folder.command(&args).env("FULMEN_SEED", "6"))["seed"], 6);
    let with = [&args[..], &["--seed", "7"]].concat();
    assert_eq!(told(folder.command(&with).env("FULMEN_SEED", "6"))["seed"], 7);
    // The context of the file is too short for this prompt, and that of an option is not.
    let long = "word ".repeat(90);
    let (_, stderr, code) = output(&mut folder.command(&["run", &long, "-n", "1"]));
    assert!(code == Some(1) && stderr.contains("77"), "{stderr}");
    told(&mut folder.command(&["run", &long, "-n", "1", "--json", "--context", "200"]));
    let (_, stderr, code) = output(folder.command(&args).env("FULMEN_SEED", "x"));
    assert!(code == Some(2) && stderr.contains("--seed"), "{stderr}");
}

#[test]
fn a_default_model_takes_the_place_of_the_built_in_one() {
    let folder = Folder::new("model = 'mine'\ndevice = 'cpu'\n[aliases]\nmine = '~/tiny.gguf'\n");
    let path = folder.0.path().join("tiny.gguf");
    let (_, stderr, code) =
        output(&mut fulmen(&["synth", "tiny-llama", path.to_str().unwrap(), "--type", "q8_0"]));
    assert_eq!(code, Some(0), "{stderr}");
    let run = ["run", "Once upon a time", "-n", "2", "--json", "--raw"];
    let mine = told(&mut folder.command(&run))["prompt_tokens"].clone();
    let built_in = told(folder.command(&run).env("FULMEN_MODEL", "builtin"))["prompt_tokens"].clone();
    assert_ne!(mine, built_in, "two vocabularies");
    fs::remove_file(&path).unwrap();
    for args in [&["run", "Once upon a time"][..], &["chat"]] {
        let (_, stderr, code) = output(&mut folder.command(args));
        assert!(code == Some(1) && stderr.contains("the alias mine means"), "{args:?}: {stderr}");
    }
}

#[test]
fn mistakes_say_where_they_are() {
    let folder = Folder::new("device = 'cpu'\n\n[sampling]\ntemprature = 1\n");
    for args in [&["devices"][..], &["config", "show"], &["run", "Once"]] {
        let (stdout, stderr, code) = output(&mut folder.command(args));
        assert_eq!((stdout.as_str(), code), ("", Some(2)), "{stderr}");
        let place = format!("{}:4:1: unknown key \"sampling.temprature\"", folder.file().display());
        assert!(stderr.contains(&place) && stderr.contains("did you mean sampling.temperature?"), "{stderr}");
    }
    // What needs no file works without one.
    let without: [&[&str]; 6] = [
        &["config", "path"],
        &["--help"],
        &["run", "--help"],
        &["--version"],
        &["version"],
        &["completions", "bash"],
    ];
    for args in without {
        assert_eq!(output(&mut folder.command(args)).2, Some(0), "{args:?}");
    }
    let (_, stderr, code) = output(folder.command(&["devices"]).env("FULMEN_CONFIG", "/no/file.toml"));
    assert!(code == Some(1) && stderr.contains("/no/file.toml: No such file"), "{stderr}");
    let (_, stderr, code) = output(&mut folder.command(&["devices", "--config", "/no/such.toml"]));
    assert!(code == Some(1) && stderr.contains("/no/such.toml"), "{stderr}");
    fs::write(folder.file(), [0xff, 0xfe]).unwrap();
    assert!(output(&mut folder.command(&["devices"])).1.contains("not UTF-8"));
    fs::write(folder.file(), "#".repeat((1 << 20) + 1)).unwrap();
    assert!(output(&mut folder.command(&["devices"])).1.contains("larger than"));
    let (_, stderr, code) = output(Folder::new("").command(&["config", "show"]).env("FULMEN_KV", "q4"));
    assert!(code == Some(2) && stderr.contains("FULMEN_KV must be f16, q8_0 or f32, not \"q4\""), "{stderr}");
}

#[cfg(target_os = "linux")]
#[test]
fn the_default_file_is_in_the_configuration_folder() {
    let folder = Folder::new("");
    let path = |change: &dyn Fn(&mut Command)| {
        let mut command = folder.command(&["config", "path"]);
        command.env_remove("FULMEN_CONFIG").env_remove("XDG_CONFIG_HOME");
        change(&mut command);
        PathBuf::from(output(&mut command).0.trim_end())
    };
    let home = folder.0.path();
    assert_eq!(path(&|_| ()), home.join(".config/fulmen/config.toml"));
    assert_eq!(
        path(&|command| {
            command.env("XDG_CONFIG_HOME", "/x");
        }),
        PathBuf::from("/x/fulmen/config.toml")
    );
    assert_eq!(
        path(&|command| {
            command.env("FULMEN_CONFIG", "/f.toml");
        }),
        PathBuf::from("/f.toml")
    );
    assert_eq!(
        path(&|command| {
            command.args(["--config", "/g.toml"]);
        }),
        PathBuf::from("/g.toml")
    );
    fs::create_dir_all(home.join(".config/fulmen")).unwrap();
    fs::write(home.join(".config/fulmen/config.toml"), "threads = 2").unwrap();
    let mut command = folder.command(&["config", "show", "--json"]);
    command.env_remove("FULMEN_CONFIG").env_remove("XDG_CONFIG_HOME");
    let shown = serde_json::from_str(&output(&mut command).0).unwrap();
    assert_eq!(value(&shown, "threads"), pair("2", "file"));
}

#[test]
fn color_is_a_setting() {
    let folder = Folder::new("color = 'always'");
    let colored = |args: &[&str]| output(&mut folder.command(args)).0.contains('\x1b');
    assert!(colored(&["devices"]));
    assert!(!colored(&["devices", "--color", "never"]));
    assert!(!output(folder.command(&["devices"]).env("FULMEN_COLOR", "never")).0.contains('\x1b'));
}
