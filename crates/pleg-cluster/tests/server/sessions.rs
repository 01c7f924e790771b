//! `/exec`, `/attach` and `/portForward` as far as a runtime without a streaming server goes.

use http::{HeaderMap, StatusCode};

use crate::node::{ServedMachine, text};

#[tokio::test]
async fn the_runtimes_refusal_is_passed_on() {
    let machine = ServedMachine::start().await;
    machine.api.allow("apiserver create proxy");
    let apiserver = machine.ca.client("apiserver", "admins");
    let spec = "containers: [{name: app, image: img, command: [serve]}]";
    let uids = machine.run(&[("web", spec)]).await;
    let uid = uids[0].as_str();
    let exec = "output=1&command=date";
    let cases = [
        (format!("/exec/default/web-n/app?{exec}"), 501, "Exec of "),
        (format!("/exec/default/web-n/{uid}/app?{exec}"), 501, "Exec of "),
        (
            format!("/exec/default/web-n/other-uid/app?{exec}"),
            404,
            "pod \"web-n\" does not exist",
        ),
        (
            format!("/exec/default/web-n/none?{exec}"),
            404,
            "container not found (\"none\")",
        ),
        (
            "/exec/default/web-n/app?command=date".to_owned(),
            400,
            "at least 1 of stdin, stdout, stderr",
        ),
        ("/exec/default/web-n/app?output=1".to_owned(), 400, "no command"),
        ("/attach/default/web-n/app?output=1".to_owned(), 501, "Attach of "),
        ("/portForward/default/web-n".to_owned(), 501, "PortForward of "),
        (
            format!("/portForward/default/web-n/{uid}?port=x"),
            400,
            "\"x\" is not a port",
        ),
    ];
    for (path, status, expected) in cases {
        for method in ["GET", "POST"] {
            let (found, body) = text(
                machine
                    .send(Some(&apiserver), None, method, &path, HeaderMap::new())
                    .await,
            )
            .await;
            assert_eq!(found, StatusCode::from_u16(status).unwrap(), "{path}: {body}");
            assert!(body.contains(expected), "{path}: {body}");
        }
    }
    machine.stop().await;
}
