//! What -o takes: each set of formats for one kind of answer.

use clap::ValueEnum;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Table,
    Wide,
    Json,
    Yaml,
}

/// For what has no columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TextFormat {
    Text,
    Json,
    Yaml,
}

/// For what comes line by line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LineFormat {
    Table,
    Wide,
    Json,
    /// As the kubelet's own PLEG would have sent them, in the format of its log
    Kubelet,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlainFormat {
    Table,
    Json,
}
