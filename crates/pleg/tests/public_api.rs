//! The public API of the crate, as a list that a change of the API changes too.
//!
//! `unreachable_pub` makes every `pub` item of the sources a public one, and rustfmt gives each a line of its own, so the sources are
//! read as text: no compiler that is not stable, and no parser. Update the list with `INSTA_UPDATE=always` and read the difference: a line
//! that goes away breaks callers.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[test]
fn the_public_api_is_the_one_on_record() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut listing = String::new();
    for file in sources(&src) {
        let items = Reader::read(&std::fs::read_to_string(&file).unwrap());
        if !items.is_empty() {
            let name = file.strip_prefix(&src).unwrap().display();
            writeln!(listing, "// {name}\n{}\n", items.join("\n")).unwrap();
        }
    }
    insta::assert_snapshot!(listing);
}

/// Every file of the crate that is no test, in order.
fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// What surrounds a line.
#[derive(Default, PartialEq)]
enum Within {
    #[default]
    Module,
    /// `impl Type`: only what is `pub` counts.
    Inherent(String),
    /// A public enum or trait: everything in it counts.
    Open,
    /// A trait's implementation, a macro or something private.
    Closed,
}

#[derive(Default)]
struct Reader {
    items: Vec<String>,
    within: Within,
    /// The attributes before an item that say something about its API.
    attributes: String,
    hidden: bool,
    /// An item of several lines, so far.
    open: Option<String>,
}

impl Reader {
    fn read(text: &str) -> Vec<String> {
        let mut reader = Self::default();
        for line in text.lines().take_while(|line| *line != "#[cfg(test)]") {
            reader.line(line);
        }
        reader.items
    }

    fn line(&mut self, line: &str) {
        let trimmed = line.trim();
        let indent = line.len() - line.trim_start().len();
        if let Some(open) = self.open.take() {
            return self.item(format!("{open} {trimmed}"), indent);
        }
        if trimmed.is_empty() || trimmed.starts_with("//") {
            return;
        }
        if trimmed.starts_with("#[") {
            self.hidden |= trimmed == "#[doc(hidden)]";
            if trimmed.starts_with("#[derive(") || trimmed == "#[non_exhaustive]" {
                write!(self.attributes, "{trimmed} ").unwrap();
            }
            return;
        }
        if line == "}" {
            self.within = Within::Module;
        } else if indent == 0 {
            self.item(line.to_owned(), 0);
        } else if indent == 4 && self.counts(trimmed) {
            self.item(trimmed.to_owned(), indent);
        } else if indent == 4 {
            (self.attributes, self.hidden) = (String::new(), false);
        }
    }

    fn counts(&self, line: &str) -> bool {
        match self.within {
            Within::Inherent(_) => line.starts_with("pub "),
            Within::Open => !line.starts_with('}'),
            Within::Module | Within::Closed => false,
        }
    }

    fn item(&mut self, text: String, indent: usize) {
        let public = text.starts_with("pub ");
        let whole = text.ends_with([';', '{', '}']) || (indent > 0 && text.ends_with(',') && balanced(&text));
        if !whole && (public || text.starts_with("impl") || self.within == Within::Open) {
            self.open = Some(text);
            return;
        }
        let (attributes, hidden) = (std::mem::take(&mut self.attributes), std::mem::take(&mut self.hidden));
        let short = text
            .trim_end_matches([';', '{', ',', ' '])
            .replace("( ", "(")
            .replace(", )", ")");
        if indent > 0 {
            let owner = match &self.within {
                Within::Inherent(owner) => format!("    {owner}: "),
                _ => "    ".to_owned(),
            };
            if !hidden {
                self.items.push(format!("{owner}{short}"));
            }
            return;
        }
        let opens = text.ends_with('{');
        if let Some(rest) = short.strip_prefix("impl") {
            let of_trait = rest.contains(" for ");
            if of_trait {
                self.items.push(short.clone());
            }
            self.within = if of_trait {
                Within::Closed
            } else {
                Within::Inherent(short)
            };
            return;
        }
        if public && !hidden {
            self.items.push(format!("{attributes}{short}"));
        }
        if opens {
            let fields = short.starts_with("pub struct ");
            let open = short.starts_with("pub enum ") || short.starts_with("pub trait ");
            self.within = if public && !hidden && fields {
                Within::Inherent(short.trim_start_matches("pub struct ").to_owned())
            } else if public && !hidden && open {
                Within::Open
            } else {
                Within::Closed
            };
        }
    }
}

/// Every bracket is closed: a comma at the end is the item's.
fn balanced(text: &str) -> bool {
    let count = |open, close| text.matches(open).count() == text.matches(close).count();
    count('(', ')') && count('{', '}') && count('[', ']')
}
