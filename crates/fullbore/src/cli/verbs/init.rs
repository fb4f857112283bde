//! `fullbore init`.

use crate::cli::values::any_bytes;
use crate::cli::{
    encryption::EncryptArgs,
    options::{OutputArgs, PLAIN_EXIT_CODES},
    output::{aside, told},
    values::destination,
};
use clap::{Args, ValueHint};
use fullbore_engine::plan::SinkSpec;
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text,
};
use fullbore_repository::writer;
use fullbore_storage::{SealedObjects, Storages};
use std::ffi::OsString;

/// `fullbore init`.
#[derive(Debug, Args)]
#[command(after_help = PLAIN_EXIT_CODES)]
pub(in crate::cli) struct InitArgs {
    /// The directory of the repository, inside an existing directory
    #[arg(value_name = "REPO", value_hint = ValueHint::DirPath, value_parser = any_bytes(destination))]
    repository: OsString,
    #[command(flatten)]
    pub(in crate::cli) encrypt: EncryptArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Makes an empty repository.
pub(in crate::cli) fn run(args: InitArgs, storages: &Storages) -> Result<u8> {
    let (target, _) = SinkSpec::parse(storages, &args.repository, None)?;
    let is_new = target.is_new_repository();
    let target = args
        .encrypt
        .apply(storages, target, &args.repository, is_new, false, false)?;
    let Some(objects) = target.storage() else {
        let message = format!(
            "cannot make a repository of {:?}: that is no name of a directory",
            args.repository
        );
        return Err(Error::new(ErrorKind::Usage, message));
    };
    // Another process may have made the repository meanwhile.
    let is_new = writer::init(
        &**objects,
        &fullbore_format::text::utc_second(jiff::Timestamp::now()),
    )?;
    let ring = objects.as_sealed().and_then(SealedObjects::ring);
    let fingerprint = ring.map(|ring| ring.fingerprint());
    match (args.output.json, args.output.quiet, is_new) {
        (true, ..) => {
            return told(|out| {
                text::json(
                    out,
                    &serde_json::json!({"type": "result", "new_repository": is_new, "fingerprint": fingerprint}),
                )
                .map(|()| 0)
            });
        }
        (_, _, true) => say_new(&target),
        (_, false, false) => aside(format_args!(
            "{} is a repository already; nothing was changed",
            target.name()
        )),
        (_, true, false) => {}
    }
    if let Some(fingerprint) = fingerprint.filter(|_| !args.output.quiet) {
        aside(format_args!("fingerprint of its keys: {fingerprint}"));
    }
    Ok(0)
}

/// Reports a new repository, with `--quiet` too: a disk that is not mounted looks like an empty directory.
pub(super) fn say_new(to: &SinkSpec) {
    aside(format_args!("{} is a new repository", to.name()));
}
