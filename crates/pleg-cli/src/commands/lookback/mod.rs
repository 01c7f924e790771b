//! The commands that look back. They ask a daemon for its history, or read the file of one that does not run; what the entries mean is
//! decided by `pleg-history`.
//!
//! | module | job |
//! |---|---|
//! | `source` | a daemon or a file, behind one interface |
//! | `subject` | which pod or container a name means |
//! | `history` | `pleg history` |
//! | `why` | `pleg why` |
//! | `day` | `pleg report` |

mod day;
mod history;
mod source;
mod subject;
mod why;

pub(super) use day::run as report;
pub(super) use history::run as history;
pub(super) use why::run as why;
