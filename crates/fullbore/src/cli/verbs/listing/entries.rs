//! The entries of a backup, one a line.

use fullbore_format::{
    entry::{EntryKind, split},
    page::{EntryState, Record},
    root::EntryName,
    text::{
        self,
        columns::{fitted_row, padded},
    },
};
use serde::Serialize;

/// How entries are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::cli) enum EntryForm {
    /// Mode, owner, size, time and path.
    #[default]
    Lines,
    /// Sizes and names, indented below their directory.
    Tree,
}

/// Terminals with fewer columns do not get the owner of an entry, and get its size rounded.
const WITH_OWNER: usize = 76;

/// Returns the line of an entry, fitted into the columns of a terminal if there are some; `human` rounds its size.
pub(super) fn shown_entry(
    record: &Record,
    form: EntryForm,
    human: bool,
    columns: Option<usize>,
) -> String {
    match form {
        EntryForm::Lines => fitted_entry(record, human, columns),
        EntryForm::Tree => tree_line(record),
    }
}

fn tree_line(record: &Record) -> String {
    let entry = &record.entry;
    let (size, slash) = match entry.kind {
        EntryKind::Directory => (String::new(), "/"),
        EntryKind::File { .. } => (text::bytes(entry.size()), ""),
        _ => (String::new(), ""),
    };
    let depth = match &entry.path[..] {
        [] => 0,
        path => 1 + path.iter().filter(|byte| **byte == b'/').count(),
    };
    let indent = 2 * depth;
    format!(
        "{size:>9}  {:indent$}{}{slash}{}{}",
        "",
        if entry.path.is_empty() {
            ".".to_owned()
        } else {
            text::name(split(&entry.path).1)
        },
        target_text(&entry.kind),
        state_text(&record.state)
    )
}

fn target_text(kind: &EntryKind) -> String {
    match kind {
        EntryKind::Symlink(target) => format!(" -> {}", text::name(target)),
        EntryKind::HardLink(target) => format!(" link to {}", text::name(target)),
        _ => String::new(),
    }
}

pub(in crate::cli) fn entry_line(record: &Record, human: bool) -> String {
    fitted_entry(record, human, None)
}

fn fitted_entry(record: &Record, human: bool, columns: Option<usize>) -> String {
    let is_narrow = columns.is_some_and(|columns| columns < WITH_OWNER);
    let entry = &record.entry;
    let owners = format!(
        "{}/{}",
        owner_text(&entry.owner.user, entry.owner.uid),
        owner_text(&entry.owner.group, entry.owner.gid)
    );
    let size = match &entry.kind {
        EntryKind::CharDevice(device) | EntryKind::BlockDevice(device) => {
            format!("{},{}", device.major, device.minor)
        }
        _ if human || is_narrow => text::bytes(entry.size()),
        _ => entry.size().to_string(),
    };
    let target = target_text(&entry.kind);
    let path = if entry.path.is_empty() {
        ".".to_owned()
    } else {
        text::name(&entry.path)
    };
    let mode = text::mode(entry);
    let time = text::local_minute(entry.mtime);
    let before = match is_narrow {
        true => format!("{mode} {size:>8} {time} "),
        false => format!("{mode} {} {size:>12} {time} ", padded(&owners, 15)),
    };
    let last = format!("{path}{target}{}", state_text(&record.state));
    fitted_row(&before, &last, columns)
}

fn owner_text(name: &str, number: u32) -> String {
    if name.is_empty() {
        number.to_string()
    } else {
        text::name(name.as_bytes())
    }
}

fn state_text(state: &EntryState) -> String {
    match state {
        EntryState::Whole | EntryState::Noted => String::new(),
        EntryState::Changed => "  (changed while it was read)".to_owned(),
        EntryState::Unreadable(reason) => {
            format!("  (not captured: {})", text::name(reason.as_bytes()))
        }
        EntryState::Vanished => "  (not captured: vanished)".to_owned(),
        EntryState::BadPages(pages) => format!("  (wrong page checksums: {})", pages.len()),
    }
}

/// An entry as JSON.
#[derive(Serialize)]
pub(super) struct EntryLine<'a> {
    r#type: &'static str,
    path: EntryName,
    kind: &'static str,
    mode: String,
    uid: u32,
    gid: u32,
    user: &'a str,
    group: &'a str,
    size: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<EntryName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    xattrs: Vec<EntryName>,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

impl<'a> EntryLine<'a> {
    pub(super) fn new(record: &'a Record) -> Self {
        let entry = &record.entry;
        let (kind, target, device) = kind_parts(&entry.kind);
        let (state, reason) = state_parts(&record.state);
        Self {
            r#type: "entry",
            path: EntryName(entry.path.clone()),
            kind,
            mode: format!("{:04o}", entry.mode),
            uid: entry.owner.uid,
            gid: entry.owner.gid,
            user: &entry.owner.user,
            group: &entry.owner.group,
            size: entry.size(),
            mtime: text::rfc3339(entry.mtime),
            target,
            device,
            digest: record.digest.map(|digest| digest.to_string()),
            xattrs: entry
                .xattrs
                .iter()
                .map(|(name, _)| EntryName(name.clone()))
                .collect(),
            state,
            reason,
        }
    }
}

/// Returns the name of the kind, the target of a link, and the number of a device.
pub(in crate::cli) fn kind_parts(
    kind: &EntryKind,
) -> (&'static str, Option<EntryName>, Option<(u32, u32)>) {
    let target = |path: &[u8]| Some(EntryName(path.to_vec()));
    match kind {
        EntryKind::File { .. } => ("file", None, None),
        EntryKind::Directory => ("directory", None, None),
        EntryKind::Symlink(path) => ("symlink", target(path), None),
        EntryKind::HardLink(path) => ("hardlink", target(path), None),
        EntryKind::Fifo => ("fifo", None, None),
        EntryKind::CharDevice(device) => ("char-device", None, Some((device.major, device.minor))),
        EntryKind::BlockDevice(device) => {
            ("block-device", None, Some((device.major, device.minor)))
        }
        EntryKind::Socket => ("socket", None, None),
    }
}

fn state_parts(state: &EntryState) -> (&'static str, Option<&str>) {
    match state {
        EntryState::Whole => ("whole", None),
        EntryState::Changed => ("changed", None),
        EntryState::Unreadable(reason) => ("unreadable", Some(reason)),
        EntryState::Vanished => ("vanished", None),
        EntryState::Noted => ("noted", None),
        EntryState::BadPages(_) => ("wrong page checksums", None),
    }
}
