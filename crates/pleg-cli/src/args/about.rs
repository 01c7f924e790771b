//! `pleg version`, `pleg completions` and `pleg man`.

use std::path::PathBuf;

use clap::Args;

use super::TextFormat;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg version
  pleg version -o json")]
pub(crate) struct Version {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: TextFormat,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  source <(pleg completions bash)
  pleg completions zsh > \"${fpath[1]}/_pleg\"
  pleg completions fish > ~/.config/fish/completions/pleg.fish")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pleg man /tmp/man && man /tmp/man/pleg-run.1")]
pub(crate) struct Man {
    /// The directory; it is created if it does not exist
    pub(crate) dir: PathBuf,
}
