//! The configuration: settings from defaults, a file, the environment and options, and `fulmen config`.

mod error;
mod file;
mod layers;
mod settings;
mod show;

use std::path::PathBuf;
use std::sync::OnceLock;

use clap::{CommandFactory, FromArgMatches, Subcommand};

pub(crate) use error::ConfigError;
pub(crate) use layers::Config;
pub(crate) use settings::BUILTIN;

/// The configuration of this process.
static CURRENT: OnceLock<Config> = OnceLock::new();

/// Show the configuration.
///
/// Settings come from, in this order: options, the environment (FULMEN_*), the configuration file, and
/// defaults. The file is named by --config or FULMEN_CONFIG; otherwise it is config.toml in the folder
/// `fulmen` of the user's configuration folder, if it exists.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ConfigCommand,
}

const EXAMPLES: &str = "\
Examples:
  fulmen config show               every setting, its value and where it comes from
  fulmen config path               where the configuration file is";

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    Show(show::Args),
    Path(PathArgs),
}

/// Print the path of the configuration file, whether it exists or not.
#[derive(Debug, clap::Args)]
#[command(after_help = PATH_EXAMPLES)]
struct PathArgs {}

const PATH_EXAMPLES: &str = "\
Examples:
  fulmen config path
  $EDITOR \"$(fulmen config path)\"";

/// Options of every command.
#[derive(Debug, clap::Args)]
pub(crate) struct GlobalOptions {
    /// Configuration file; also FULMEN_CONFIG. `fulmen config path` prints the default.
    #[arg(long, value_name = "FILE", global = true, help_heading = "Global options")]
    config: Option<PathBuf>,

    /// Colored output: auto (on a terminal), always or never.
    #[arg(long, value_name = "WHEN", global = true, default_value = "auto")]
    #[arg(value_parser = ["auto", "always", "never"], hide_possible_values = true)]
    #[arg(help_heading = "Global options")]
    color: String,
}

impl GlobalOptions {
    /// Makes later output colored or not.
    pub(crate) fn set_color(&self) {
        let choice = match self.color.as_str() {
            "always" => anstream::ColorChoice::Always,
            "never" => anstream::ColorChoice::Never,
            _ => return,
        };
        choice.write_global();
    }
}

/// The configuration of this process; before [`parse`] only defaults and the environment.
pub(crate) fn current() -> &'static Config {
    CURRENT.get_or_init(Config::default)
}

/// Parses the arguments of this process. What they leave out comes from the environment, the configuration
/// file or defaults.
pub(crate) fn parse<T: CommandFactory + FromArgMatches>() -> Result<T, ConfigError> {
    // Once without the file, which an option names: mistakes in the arguments come first, help needs none.
    let matches = layers::with_environment(T::command()).get_matches();
    let option = matches.get_one::<PathBuf>("config").cloned();
    let mut config = match layers::needs_no_file(&matches) {
        true => Config::unread(option),
        false => Config::load(option)?,
    };
    config.options = layers::given_options(&matches);
    let command = layers::with_environment(config.apply(T::command()));
    // Only the first call counts, and it is the only one.
    let _ = CURRENT.set(config);
    #[cfg(feature = "server")]
    let mut described = command.clone();
    let matches = command.get_matches();
    #[cfg(feature = "server")]
    if let Some(option) = crate::remote::misplaced_option(&matches) {
        let message =
            format!("--{} is for a model in this process, not for --server", option.replace('_', "-"));
        described.error(clap::error::ErrorKind::ArgumentConflict, message).exit();
    }
    Ok(T::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

pub(crate) fn run(args: &Args) -> Result<(), ConfigError> {
    match &args.command {
        ConfigCommand::Show(args) => show::run(args, current()),
        ConfigCommand::Path(_) => {
            let path = current().path.as_ref().ok_or(ConfigError::NoFolder)?;
            Ok(crate::output::print_text(&format!("{}\n", path.display()))?)
        }
    }
}
