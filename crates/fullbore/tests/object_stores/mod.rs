//! The program over object stores, as its users run it: versitygw for S3, Azurite for Azure, a fake for Google.

mod faults;
mod fleet;
mod killed;
mod no_delete;
mod requests;
mod several;
mod two_stores;
mod verbs;
mod wal;

use std::{ffi::OsString, path::Path, process::Command};
use tempfile::TempDir;
use testkit::{
    fault_proxy::{self, FaultProxy},
    runs::{self, Ran, assert_same, command, shape, temp},
    stores,
};

/// A repository of its own in a store, and what a shell has set to reach it.
pub(crate) struct StoreRepository {
    pub(crate) address: String,
    variables: Vec<(String, String)>,
    home: TempDir,
}

impl StoreRepository {
    fn new(address: String, variables: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self {
            address,
            variables: variables.iter().map(own).collect(),
            home: temp(),
        }
    }

    /// In S3, at this endpoint.
    pub(crate) fn s3_at(endpoint: &str) -> Self {
        let variables = [
            ("AWS_ACCESS_KEY_ID", "tester"),
            ("AWS_SECRET_ACCESS_KEY", stores::SECRET),
            ("AWS_ENDPOINT_URL", endpoint),
            ("FULLBORE_STORAGE_RENEWAL_MILLIS", "400"),
        ];
        let address = format!("s3://{}/{}", stores::BUCKET, stores::own_prefix());
        Self::new(address, &variables)
    }

    pub(crate) fn s3() -> Self {
        Self::s3_at(&stores::s3_endpoint())
    }

    /// In S3, behind a proxy.
    pub(crate) fn s3_proxied() -> (Self, FaultProxy) {
        let proxy = FaultProxy::new(stores::s3_server().port);
        (Self::s3_at(&proxy.endpoint), proxy)
    }

    pub(crate) fn azure() -> Self {
        let variables = [
            ("AZURE_STORAGE_ACCOUNT", "devstoreaccount1"),
            ("AZURE_STORAGE_KEY", stores::AZURE_KEY),
            ("AZURE_ENDPOINT", &stores::azure_endpoint()),
        ];
        let address = format!("az://{}/{}", stores::BUCKET, stores::own_prefix());
        Self::new(address, &variables)
    }

    pub(crate) fn google() -> Self {
        let variables = [
            ("GOOGLE_SERVICE_ACCOUNT_KEY", stores::GCS_ACCOUNT),
            ("STORAGE_EMULATOR_HOST", &stores::gcs_endpoint()),
        ];
        let address = format!("gs://{}/{}", stores::BUCKET, stores::own_prefix());
        Self::new(address, &variables)
    }

    /// Sets a variable for all runs from now on.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// The same repository, seen past a proxy.
    pub(crate) fn beside(&self) -> Self {
        let mut beside = Self::s3();
        beside.address.clone_from(&self.address);
        beside
    }

    pub(crate) fn command(&self, args: impl IntoIterator<Item = OsString>) -> Command {
        let mut command = command(args);
        for name in ["AWS_PROFILE", "FULLBORE_PASSPHRASE", "FULLBORE_KEY_FILE"] {
            command.env_remove(name);
        }
        let variables = self.variables.iter().map(|(name, value)| (name, value));
        command
            .envs(variables)
            .env("XDG_CACHE_HOME", self.home.path())
            .env("FULLBORE_STATE_DIR", self.home.path().join("state"));
        command
    }

    pub(crate) fn run(&self, args: impl IntoIterator<Item = OsString>) -> Ran {
        self.command(args).output().unwrap().into()
    }

    pub(crate) fn backup_args(&self, tree: &Path) -> Vec<OsString> {
        args!["backup", tree, "--to", self.address, "--no-encryption"].to_vec()
    }

    /// Makes a backup; its id.
    #[track_caller]
    pub(crate) fn back_up(&self, tree: &Path) -> String {
        let args = self.backup_args(tree).into_iter().chain(args!["--json"]);
        let ran = self.run(args).ends_with(0);
        let last = ran.json().pop().unwrap();
        last["id"].as_str().unwrap().to_owned()
    }

    /// Ids of backups that are listed, all of them complete.
    #[track_caller]
    pub(crate) fn listed(&self) -> Vec<String> {
        let ran = self.run(args!["list", self.address, "--json"]).ends_with(0);
        let id = |backup: serde_json::Value| {
            assert_eq!(backup["complete"], true, "{backup}");
            backup["id"].as_str().unwrap().to_owned()
        };
        ran.json().into_iter().map(id).collect()
    }

    pub(crate) fn named(&self, id: &str) -> String {
        format!("{}@{id}", self.address)
    }

    /// Backup `id` has all content of the tree.
    #[track_caller]
    pub(crate) fn assert_restores(&self, tree: &Path, id: &str) {
        let dir = temp();
        let back = dir.path().join("back");
        self.run(args!["restore", self.named(id), "--to", back, "--quiet"])
            .ends_with(0);
        assert_same(&shape(tree), &shape(&back), id);
    }
}
