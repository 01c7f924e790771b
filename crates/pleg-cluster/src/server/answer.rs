//! Answers that are errors: one line of text, as a kubelet's.

use std::fmt;

use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;

pub(super) fn refuse(status: StatusCode, message: &(impl fmt::Display + ?Sized)) -> Response {
    (
        [(CONTENT_TYPE, "text/plain; charset=utf-8")],
        (status, format!("{message}\n")),
    )
        .into_response()
}
