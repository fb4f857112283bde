//! Reads a tar that comes as a stream: lists its entries, and checks whether it is intact.

use super::{VerifyVerdict, losses::EntryLoss};
use crate::{
    report::damage::Report,
    tar::{
        members::TarMembers,
        self_check::{MAX_UNLABELED, Mismatch, SelfCheck},
    },
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    page::Record,
    pax::{TarItem, Unknown},
    root::Root,
};
use fullbore_platform::{BlockedCalls, metrics::meter::Meter};
use fullbore_repository::{
    archive::{Archive, Selection},
    open::{OpenedFrom, open_any},
    select::BackupFilter,
};
use fullbore_storage::Storages;
use std::{
    ffi::OsStr,
    fs::File,
    io::{Read, stdin},
    sync::atomic::Ordering::Relaxed,
    time::Instant,
};

/// The input of a command that only reads.
pub enum InspectedInput {
    /// A backup with pages.
    Backup(Box<Archive>),
    /// Standard input, or a file of another program.
    Stream(Box<dyn Read + Send>),
}

/// Opens `FROM[@BACKUP]`, or standard input for `-`.
///
/// # Errors
/// As [`open_any`].
pub fn look(storages: &Storages, from: &OsStr, filter: &BackupFilter) -> Result<InspectedInput> {
    if from == "-" {
        filter.must_be_empty(from)?;
        let input = storages.opened_stream(BlockedCalls(stdin()), "standard input")?;
        return Ok(InspectedInput::Stream(input));
    }
    match open_any(storages, from, filter)? {
        OpenedFrom::Backup(archive) => Ok(InspectedInput::Backup(archive)),
        OpenedFrom::Foreign(path) => {
            let file =
                File::open(&path).map_err(|e| Error::io(format!("could not open {path:?}"), e))?;
            let input = storages.opened_stream(file, &format!("{path:?}"))?;
            Ok(InspectedInput::Stream(input))
        }
    }
}

/// Calls `each` for every entry: with the record from the pages of the stream, or with the member
/// if there are no pages.
///
/// # Errors
/// Those of the stream and of `each`.
pub fn entries(
    input: impl Read + Send + 'static,
    mut each: impl FnMut(&Record) -> Result<()>,
) -> Result<()> {
    let meter = Meter::default();
    let mut members = TarMembers::of(input, SelfCheck::default(), &meter);
    // The first members of a stream with pages may come before it is known that it has pages.
    let mut held = Some(Vec::new());
    loop {
        let found = members.next();
        if members.self_check.has_description() {
            held = Some(Vec::new());
        }
        members
            .self_check
            .records()
            .iter()
            .try_for_each(&mut each)?;
        members
            .self_check
            .take_mismatches()
            .into_iter()
            .try_for_each(|flaw| Err(flaw.error))?;
        match found? {
            None => break,
            Some(TarItem::Member(member)) => {
                let record = Record {
                    entry: member.entry,
                    ..Record::default()
                };
                match &mut held {
                    Some(records) if records.len() < MAX_UNLABELED => records.push(record),
                    _ => {
                        held.take()
                            .unwrap_or_default()
                            .iter()
                            .try_for_each(&mut each)?;
                        each(&record)?;
                    }
                }
                members.skip(member.stored_len)?;
            }
            Some(
                TarItem::Outside(Unknown { stored_len, .. })
                | TarItem::Unknown(Unknown { stored_len, .. }),
            ) => {
                members.skip(stored_len)?;
            }
        }
    }
    held.unwrap_or_default().iter().try_for_each(each)?;
    members.end().map(|_| ())
}

/// Returns the root of an archive that comes as a stream.
///
/// # Errors
/// Those of the stream; [`ErrorKind::Unsupported`] if it has no root.
pub fn root(input: impl Read + Send + 'static) -> Result<Root> {
    let meter = Meter::default();
    let mut members = TarMembers::of(input, SelfCheck::default(), &meter);
    pass(&mut members, &meter)?;
    members
        .self_check
        .take_mismatches()
        .into_iter()
        .try_for_each(|flaw| Err(flaw.error))?;
    members.self_check.root().cloned().ok_or_else(no_metadata)
}

fn no_metadata() -> Error {
    let message = "cannot show this: it is a tar without metadata of fullbore";
    Error::new(ErrorKind::Unsupported, message).hint("`fullbore list` shows its entries")
}

/// Reads a whole stream, and compares its members with its own records.
///
/// # Errors
/// Errors other than damage, which is in the verdict.
pub(crate) fn verify(input: impl Read + Send + 'static, meter: &Meter) -> Result<VerifyVerdict> {
    let (start, report) = (Instant::now(), Report::new(true));
    let mut members = TarMembers::of(input, SelfCheck::of(Selection::default()), meter);
    let mut is_trailed = false;
    report.tolerate(pass(&mut members, meter).map(|trailed| is_trailed = trailed))?;
    let SelfCheck { lacking, .. } = &members.self_check;
    let (not_captured, bad_pages) = (lacking.unreadable, lacking.bad_pages);
    let (mut files, flaws) = (Vec::new(), members.self_check.take_mismatches());
    for Mismatch { error, path, .. } in flaws {
        files.extend(path.clone());
        report.add((error, path.into_iter().collect()))?;
    }
    let id = members
        .self_check
        .root()
        .map(|root| root.id.clone())
        .unwrap_or_default();
    let loss = EntryLoss {
        backup: id.clone(),
        files,
        ..EntryLoss::default()
    };
    Ok(VerifyVerdict {
        backups: usize::from(!id.is_empty()),
        data: true,
        // A tar of another program has no root: only its own checksums can be checked.
        is_bare: id.is_empty(),
        is_trailed,
        id,
        entries: meter.entries.load(Relaxed),
        not_captured,
        bad_pages,
        damage: report.damage(),
        lost: Some(loss)
            .filter(|loss| !loss.files.is_empty())
            .into_iter()
            .collect(),
        seconds: start.elapsed().as_secs_f64(),
        ..VerifyVerdict::default()
    })
}

/// Reads every member, and digests the content of files. Returns whether foreign data follows.
fn pass(members: &mut TarMembers<'_>, meter: &Meter) -> Result<bool> {
    let mut data = Vec::new();
    while let Some(found) = members.next()? {
        meter.entries.fetch_add(1, Relaxed);
        let member = match found {
            TarItem::Member(member) => member,
            TarItem::Outside(Unknown { stored_len, .. })
            | TarItem::Unknown(Unknown { stored_len, .. }) => {
                members.skip(stored_len)?;
                continue;
            }
        };
        if !member.entry.is_file() {
            members.self_check.came(&member.entry.path, None);
            members.skip(member.stored_len)?;
            continue;
        }
        let mut left = member.stored_len;
        while left > 0 {
            members.piece(left, &mut data)?;
            left -= data.len() as u64;
        }
        let digests = members.digests();
        members.self_check.came(&member.entry.path, digests);
        members.skip_padding(member.stored_len)?;
    }
    members.end()
}
