//! What a document says: commands with what they are shown to print, and links.

use std::path::{Path, PathBuf};

pub(crate) struct Document {
    /// Its path from the root of the repository.
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) commands: Vec<Command>,
    /// Files it links to.
    pub(crate) links: Vec<String>,
}

pub(crate) struct Command {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) shown: Vec<String>,
}

impl Document {
    pub(crate) fn read(root: &Path, path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        Self {
            name: path.strip_prefix(root).unwrap().display().to_string(),
            dir: path.parent().unwrap().to_owned(),
            commands: commands(&text),
            links: links(&text),
        }
    }
}

fn commands(text: &str) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    let mut language: Option<&str> = None;
    for (i, line) in text.lines().enumerate() {
        if let Some(fence) = line.strip_prefix("```") {
            language = language.is_none().then_some(fence);
            continue;
        }
        let command = match language {
            Some("console") => line.strip_prefix("$ "),
            Some("sh") => Some(line).filter(|line| !line.is_empty() && !line.starts_with('#')),
            _ => continue,
        };
        match (command, commands.last_mut()) {
            (Some(command), _) => commands.push(Command {
                line: i + 1,
                text: command.to_owned(),
                shown: Vec::new(),
            }),
            (None, Some(last)) if !matches!(line.trim(), "" | "...") => last.shown.push(line.to_owned()),
            _ => {}
        }
    }
    commands
}

fn links(text: &str) -> Vec<String> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter_map(|link| link.split('#').next())
        .filter(|link| !link.is_empty() && !link.contains("://"))
        .map(str::to_owned)
        .collect()
}

/// What stands between single backticks, outside of blocks.
pub(crate) fn quoted(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}
