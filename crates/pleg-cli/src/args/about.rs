//! `pleg version` and `pleg completions`.

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
