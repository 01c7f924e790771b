//! `/containerLogs`.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use pleg_sim::Ending;
use tokio::time::timeout;

use crate::node::{PATIENCE, ServedMachine};

const SPEC: &str = "containers: [{name: app, image: img, command: [serve]}]";

fn write(log: &Path, text: &str) {
    fs::create_dir_all(log.parent().unwrap()).unwrap();
    let mut file = fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
    for line in text.lines() {
        writeln!(file, "2026-11-18T00:00:01.5Z stdout F {line}").unwrap();
    }
}

#[tokio::test]
async fn logs_are_served_with_their_options() {
    let machine = ServedMachine::start().await;
    machine.api.allow("apiserver get proxy");
    let apiserver = machine.ca.client("apiserver", "admins");
    let uids = machine.run(&[("web", SPEC)]).await;
    let log = machine.log("web", &uids[0], "app");
    let _ = fs::remove_file(&log);
    write(&log, "one\ntwo\nthree");
    let path = "/containerLogs/default/web-n/app";
    for (query, expected) in [
        ("", "one\ntwo\nthree\n"),
        ("?tailLines=2", "two\nthree\n"),
        ("?tailLines=1&timestamps=true", "2026-11-18T00:00:01.500000000Z three\n"),
        ("?limitBytes=5", "one\nt"),
        ("?sinceTime=2026-11-18T00:00:02Z", ""),
        ("?stream=Stderr", ""),
    ] {
        let answer = machine.get(&apiserver, &format!("{path}{query}")).await;
        assert_eq!(answer, (StatusCode::OK, expected.to_owned()), "{query}");
    }
    for (path, status, expected) in [
        ("/containerLogs/default/web/app", 404, "pod \"web\" does not exist\n"),
        (
            "/containerLogs/default/web-n/other",
            404,
            "container \"other\" not found in pod \"web-n\"\n",
        ),
        (
            "/containerLogs/default/web-n/app?previous=true",
            400,
            "previous terminated container \"app\" in pod \"web-n\" not found\n",
        ),
        (
            "/containerLogs/default/web-n/app?tailLines=-1",
            422,
            "tailLines: must be greater than or equal to 0\n",
        ),
        (
            "/containerLogs/default/web-n/app?tailLines=x",
            400,
            "tailLines: \"x\" is not a number\n",
        ),
    ] {
        let (found, body) = machine.get(&apiserver, path).await;
        assert_eq!((found.as_u16(), body.as_str()), (status, expected), "{path}");
    }
    machine.stop().await;
}

#[tokio::test]
async fn a_followed_log_ends_with_its_container() {
    let machine = ServedMachine::start().await;
    machine.api.allow("apiserver get proxy");
    let apiserver = machine.ca.client("apiserver", "admins");
    let spec = "restartPolicy: Never, containers: [{name: app, image: img, command: [serve]}]";
    let uids = machine.run(&[("web", spec)]).await;
    let log = machine.log("web", &uids[0], "app");
    let _ = fs::remove_file(&log);
    write(&log, "one");
    let path = "/containerLogs/default/web-n/app?follow=true";
    let followed = machine
        .send(Some(&apiserver), None, "GET", path, HeaderMap::new())
        .await;
    assert_eq!(followed.status(), StatusCode::OK);
    let mut body = followed.into_body();
    let mut next = async || {
        let frame = timeout(PATIENCE, body.frame()).await.expect("nothing comes");
        frame.map(|frame| String::from_utf8(frame.unwrap().into_data().unwrap().to_vec()).unwrap())
    };
    assert_eq!(next().await.as_deref(), Some("one\n"));
    write(&log, "two");
    assert_eq!(next().await.as_deref(), Some("two\n"));
    fs::rename(&log, log.with_file_name("0.log.20261118-000001")).unwrap();
    write(&log, "three");
    assert_eq!(next().await.as_deref(), Some("three\n"));
    machine
        .sim
        .world()
        .exit(&"default/web-n".parse().unwrap(), Some("app"), Ending::Exit(0))
        .unwrap();
    assert_eq!(next().await, None);
    machine.stop().await;
}
