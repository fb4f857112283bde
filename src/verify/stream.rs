//! Looking into a tar that comes as a stream: what is in it, and whether it is whole.

use super::{VerifyVerdict, losses::EntryLoss};
use crate::{
    archive::{Archive, Selection},
    error::{Error, ErrorKind, Result},
    format::{
        page::Record,
        pax::{TarItem, Unknown},
        root::Root,
    },
    metrics::meter::Meter,
    platform::BlockedCalls,
    repo::{
        open::{OpenedFrom, open_any},
        select::BackupFilter,
    },
    report::damage::Report,
    storage::access::opened_stream,
    tar::{
        members::Members,
        self_check::{MAX_UNLABELED, Mismatch, SelfCheck},
    },
};
use std::{
    ffi::OsStr,
    fs::File,
    io::{Read, stdin},
    sync::atomic::Ordering::Relaxed,
    time::Instant,
};

/// What `FROM[@BACKUP]` is to a command that only looks.
pub(crate) enum Looked {
    /// A backup that has pages to look into.
    Backup(Box<Archive>),
    /// Standard input, or a file of some other program.
    Stream(Box<dyn Read + Send>),
}

/// Open `FROM[@BACKUP]`, or standard input if that is `-`.
///
/// # Errors
/// As [`open_any`].
pub(crate) fn look(from: &OsStr, filter: &BackupFilter) -> Result<Looked> {
    if from == "-" {
        filter.must_be_empty(from)?;
        let input = opened_stream(BlockedCalls(stdin()), "standard input")?;
        return Ok(Looked::Stream(input));
    }
    match open_any(from, filter)? {
        OpenedFrom::Backup(archive) => Ok(Looked::Backup(archive)),
        OpenedFrom::Foreign(path) => {
            let file =
                File::open(&path).map_err(|e| Error::io(format!("could not open {path:?}"), e))?;
            Ok(Looked::Stream(opened_stream(file, &format!("{path:?}"))?))
        }
    }
}

/// Call `each` for every entry: as the pages of the stream describe it if there are some, else as its member does.
///
/// # Errors
/// Those of the stream and of `each`.
pub(crate) fn entries(
    input: impl Read + Send + 'static,
    mut each: impl FnMut(&Record) -> Result<()>,
) -> Result<()> {
    let meter = Meter::default();
    let mut members = Members::of(input, SelfCheck::default(), &meter);
    // Of a stream that has pages the first members may come before that is known.
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

/// The root of an archive that comes as a stream.
///
/// # Errors
/// Those of the stream; [`Kind::Unsupported`] if it has none.
pub(crate) fn root(input: impl Read + Send + 'static) -> Result<Root> {
    let meter = Meter::default();
    let mut members = Members::of(input, SelfCheck::default(), &meter);
    pass(&mut members, &meter)?;
    members
        .self_check
        .take_mismatches()
        .into_iter()
        .try_for_each(|flaw| Err(flaw.error))?;
    let none = || {
        Error::new(
            ErrorKind::Unsupported,
            "cannot show this: it is a tar that says nothing of itself",
        )
        .hint("`fullbore list` shows what is in it")
    };
    members.self_check.root().cloned().ok_or_else(none)
}

/// Read all of a stream, and compare it with what it says of itself.
///
/// # Errors
/// What is no damage: that is in the verdict.
pub(crate) fn verify(input: impl Read + Send + 'static, meter: &Meter) -> Result<VerifyVerdict> {
    let (start, report) = (Instant::now(), Report::new(true));
    let mut members = Members::of(input, SelfCheck::of(Selection::default()), meter);
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

/// Read every member, and digest the content of files. Did something follow that is none?
fn pass(members: &mut Members<'_>, meter: &Meter) -> Result<bool> {
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
