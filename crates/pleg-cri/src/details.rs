//! Removes `grpc-status-details-bin` from every answer: it is not used here, and tonic panics if it is not valid base64. A runtime must not
//! be able to end one of our tasks.

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt as _;
use http_body_util::combinators::MapFrame;
use tonic::body::Body;
use tonic::transport::Channel;
use tower::ServiceExt as _;
use tower::util::MapResponse;

const DETAILS: &str = "grpc-status-details-bin";

type Plain = MapFrame<Body, fn(Frame<Bytes>) -> Frame<Bytes>>;

/// A channel whose answers have no details.
pub(crate) type WithoutDetails = MapResponse<Channel, fn(http::Response<Body>) -> http::Response<Plain>>;

/// The channel, with its answers stripped.
pub(crate) fn without_details(channel: Channel) -> WithoutDetails {
    channel.map_response(strip)
}

fn strip(response: http::Response<Body>) -> http::Response<Plain> {
    let (mut head, body) = response.into_parts();
    head.headers.remove(DETAILS);
    http::Response::from_parts(head, body.map_frame(strip_trailers))
}

fn strip_trailers(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        trailers.remove(DETAILS);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn details_are_taken_out_of_head_and_trailers() {
        let garbled = || {
            http::HeaderMap::from_iter([
                ("grpc-status".parse().unwrap(), "5".parse().unwrap()),
                (DETAILS.parse().unwrap(), "no base64!".parse().unwrap()),
            ])
        };
        let body = http_body_util::Full::new(Bytes::from_static(b"x"))
            .with_trailers(async move { Some(Ok::<_, std::convert::Infallible>(garbled())) });
        let mut response = http::Response::new(Body::new(body));
        *response.headers_mut() = garbled();

        let (head, body) = strip(response).into_parts();
        let collected = body.collect().await.unwrap();
        for headers in [&head.headers, collected.trailers().unwrap()] {
            assert!(!headers.contains_key(DETAILS));
            assert_eq!(
                tonic::Status::from_header_map(headers).unwrap().code(),
                tonic::Code::NotFound
            );
        }
        assert_eq!(collected.to_bytes(), "x");
    }
}
