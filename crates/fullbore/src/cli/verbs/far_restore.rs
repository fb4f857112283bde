//! Restores whose target is on another host: the whole command runs there, with the repository of this host.

use super::{
    far::{FarArguments, offered_name, printing, run_there},
    restore_args::{RestoreArgs, plan},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_repository::open::{named, place};
use fullbore_storage::{FarRestore, Location, Storages, wire::OfferedObjects};
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    sync::Arc,
};

/// Runs a restore on the host of its target, if that is another one. Returns the exit code.
///
/// # Errors
/// [`ErrorKind::Usage`] if the backup is in no repository; those of the connection.
pub(super) fn restore(args: &RestoreArgs, storages: &Storages) -> Result<Option<u8>> {
    let Some(target) = &args.to else {
        return Ok(None);
    };
    let Location::Ssh { host, path } = Location::parse(target.as_os_str())? else {
        return Ok(None);
    };
    let (location, selector) = place(&args.from)?;
    if !location.is_repository() {
        let message = format!("cannot restore {location} on another host");
        return Err(Error::new(ErrorKind::Usage, message).because("it is no repository"));
    }
    let root = plan(args, storages)?.chosen_root()?;
    // The other host finds one backup, so it needs no other name for it than its id.
    let named = match selector {
        Some(selector) => named(without(&args.from, selector), &root.id),
        None => args.from.clone(),
    };
    let arguments = FarArguments {
        to: path.into(),
        words: vec![(args.from.clone(), offered_name(&named))],
        added: Vec::new(),
    };
    let report = args.run.report.as_deref();
    let rights = FarRestore::new(storages.objects(&location)?, &root);
    let offer = printing().objects(OfferedObjects::new(Arc::new(rights)));
    run_there(storages, &host, &arguments, offer, report).map(Some)
}

/// The word of a repository without `@` and the words that select a backup.
fn without(word: &OsStr, selector: &str) -> OsString {
    let bytes = word.as_bytes();
    let end = bytes.len().saturating_sub(selector.len() + 1);
    OsStr::from_bytes(&bytes[..end]).to_owned()
}
