//! Two object stores in one process: each is reached at its own endpoint, with its own credentials and settings.

use super::{
    stores::{
        BUCKET, SECRET, other_s3_server, own_prefix, s3_endpoint, s3_server, write_other_profile,
    },
    suite::{get, put},
};
use fullbore_format::error::ErrorKind;
use fullbore_storage::{
    CloudEnvironment, CloudSettings, Objects, StorageAccess, Storages, StoreSettings,
};
use std::{path::Path, sync::Arc};

/// The storages of a run in which the store at `other` is the second one.
fn storages(credentials: &Path, other: &str, settings: &[&str]) -> Storages {
    let endpoint = format!("endpoint=http://127.0.0.1:{}", other_s3_server().port);
    let of_other = settings.iter().copied().chain([&endpoint[..]]);
    let words: Vec<_> = of_other
        .map(|setting| format!("{other},{setting}"))
        .chain([format!("endpoint={}", s3_endpoint())])
        .collect();
    let file = credentials.display().to_string();
    let variables = [
        ("AWS_ACCESS_KEY_ID", "tester"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_SHARED_CREDENTIALS_FILE", &file),
    ];
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    Storages::new(StorageAccess {
        cloud: StoreSettings::new(CloudSettings::default(), &words).unwrap(),
        environment: CloudEnvironment::of(variables.map(own)),
        ..StorageAccess::default()
    })
}

fn is_in(server: &super::stores::Server, address: &str) -> bool {
    let (_, prefix) = address.split_once(&format!("{BUCKET}/")).unwrap();
    let object = server
        .dir
        .join("root")
        .join(BUCKET)
        .join(prefix)
        .join("tags/a");
    object.exists()
}

#[test]
fn two_stores_have_their_own_endpoints_and_credentials() {
    let dir = tempfile::tempdir().unwrap();
    let credentials = write_other_profile(dir.path());
    let [near, far] = [(); 2].map(|()| format!("s3://{BUCKET}/{}", own_prefix()));
    let storages = storages(&credentials, &far, &["profile=offsite", "limit-upload=1M"]);
    let open = |address: &str| -> Arc<dyn Objects> { storages.repository_at(address).unwrap() };
    let (first, second) = (open(&near), open(&far));
    put(&first, "tags/a", b"near");
    put(&second, "tags/a", b"far");
    assert_eq!(get(&first, "tags/a").unwrap(), b"near");
    assert_eq!(get(&second, "tags/a").unwrap(), b"far");
    assert!(is_in(s3_server(), &near) && !is_in(s3_server(), &far));
    assert!(is_in(other_s3_server(), &far) && !is_in(other_s3_server(), &near));
    assert!(storages.cloud_counts().unwrap().requests >= 4);
}

#[test]
fn credentials_of_the_environment_do_not_open_the_second_store() {
    let dir = tempfile::tempdir().unwrap();
    let credentials = write_other_profile(dir.path());
    let far = format!("s3://{BUCKET}/{}", own_prefix());
    let storages = storages(&credentials, &far, &[]);
    let error = storages.repository_at(&far).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission, "{}", error.line());
}

#[test]
fn two_values_know_nothing_of_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let credentials = write_other_profile(dir.path());
    let far = format!("s3://{BUCKET}/{}", own_prefix());
    let with_profile = storages(&credentials, &far, &["profile=offsite"]);
    with_profile.repository_at(&far).unwrap();
    let without = storages(&credentials, &far, &[]);
    assert!(without.cloud_counts().is_none());
    assert!(without.repository_at(&far).is_err());
}
