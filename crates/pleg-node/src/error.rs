//! Errors as text, for logs and pod statuses.

use std::error::Error;

/// An error and its causes: `outer: cause: cause`. A cause that the text before it already contains is left out.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
