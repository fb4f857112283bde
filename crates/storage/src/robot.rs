//! Changes media with a changer, by the program mtx.
//!
//! `mtx status` tells which medium is in which slot, by its barcode. The barcode of a volume is its name, without the
//! endings of a file. Drive 0 is used.

use crate::change::{ChangeAction, ChangeRequest, Changed, run_command};
use fullbore_format::error::{Error, ErrorKind, Result};
use std::{ffi::OsString, path::Path, process::Stdio, time::Duration};

/// The barcodes of cleaning media begin so.
const CLEANING: &str = "CLN";

/// A changer.
pub(crate) struct Robot<'a> {
    device: &'a Path,
    patience: Duration,
}

/// What a changer has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Inventory {
    /// The barcode in drive 0, and the slot that it came from; `None` if the drive is empty.
    drive: Option<(String, Option<u32>)>,
    /// The slots in order, with their barcodes; `None` for an empty one.
    slots: Vec<(u32, Option<String>)>,
}

impl<'a> Robot<'a> {
    pub(crate) fn new(device: &'a Path, patience: Duration) -> Self {
        Self { device, patience }
    }

    /// Brings the volume of a request into the drive; for the next volume of a backup, the medium of the next slot.
    ///
    /// # Errors
    /// Those of mtx; [`ErrorKind::Full`] if no slot is free for the medium in the drive.
    pub(crate) fn change(&self, request: &ChangeRequest) -> Result<Changed> {
        let there = Inventory::parse(&self.mtx(&["status"])?);
        let label = bare(&request.label);
        let slot = match request.action {
            ChangeAction::Want if there.drive_has(label) => return Ok(Changed::Yes),
            ChangeAction::Want => there.slot_of(label),
            ChangeAction::Next => there.next_slot(),
        };
        let Some(slot) = slot else {
            return Ok(Changed::No);
        };
        if let Some((_, origin)) = &there.drive {
            let free = there.free_slot(*origin).ok_or_else(|| {
                let message = format!("could not unload the drive of {:?}", self.device);
                Error::new(ErrorKind::Full, message).because("no slot is free")
            })?;
            self.mtx(&["unload", &free.to_string(), "0"])?;
        }
        self.mtx(&["load", &slot.to_string(), "0"])?;
        Ok(Changed::Yes)
    }

    fn mtx(&self, words: &[&str]) -> Result<String> {
        let mut line: Vec<OsString> = vec!["mtx".into(), "-f".into(), self.device.into()];
        line.extend(words.iter().map(OsString::from));
        let (status, printed) = run_command(&line, &[], Stdio::piped(), self.patience)?;
        if status.success() {
            return Ok(String::from_utf8_lossy(&printed).into_owned());
        }
        let message = format!("could not change the medium with mtx {}", words.join(" "));
        Err(Error::new(ErrorKind::System, message).because(format!("it ended with {status}")))
    }
}

/// Returns a name without the endings of a file.
fn bare(label: &str) -> &str {
    let label = label.strip_suffix(".age").unwrap_or(label);
    label.strip_suffix(".tar.zst").unwrap_or(label)
}

impl Inventory {
    /// Reads what `mtx status` prints. Lines of other kinds are skipped.
    fn parse(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("Data Transfer Element 0:Full") {
                let origin = rest.split_once("Storage Element ").map(|(_, rest)| rest);
                found.drive = Some((barcode(rest), origin.and_then(first_number)));
            } else if let Some(rest) = line.strip_prefix("Storage Element ")
                && let Some(number) = first_number(rest)
                && let Some((_, state)) = rest.split_once(':')
            {
                let is_full = state.starts_with("Full");
                found.slots.push((number, is_full.then(|| barcode(state))));
            }
        }
        found
    }

    fn drive_has(&self, label: &str) -> bool {
        let drive = self.drive.as_ref();
        drive.is_some_and(|(barcode, _)| barcode == label)
    }

    fn slot_of(&self, label: &str) -> Option<u32> {
        let mut slots = self.slots.iter();
        let (number, _) = slots.find(|(_, barcode)| barcode.as_deref() == Some(label))?;
        Some(*number)
    }

    /// Returns the next full slot behind the one that the medium in the drive came from.
    fn next_slot(&self) -> Option<u32> {
        let origin = self.drive.as_ref().and_then(|(_, origin)| *origin);
        let is_medium = |barcode: &Option<String>| {
            let barcode = barcode.as_ref();
            barcode.is_some_and(|barcode| !barcode.starts_with(CLEANING))
        };
        let mut slots = self.slots.iter();
        let (number, _) =
            slots.find(|(number, barcode)| Some(*number) > origin && is_medium(barcode))?;
        Some(*number)
    }

    /// Returns an empty slot: the one that the medium came from, if it is empty.
    fn free_slot(&self, origin: Option<u32>) -> Option<u32> {
        let mut empty = self.slots.iter().filter(|(_, barcode)| barcode.is_none());
        let own = empty.clone().find(|(number, _)| Some(*number) == origin);
        let (number, _) = own.or_else(|| empty.next())?;
        Some(*number)
    }
}

/// Returns the barcode at the end of a line; empty if the medium has none.
fn barcode(text: &str) -> String {
    let tag = text.split_once("VolumeTag").map(|(_, tag)| tag);
    let tag = tag.unwrap_or_default().trim_start_matches([' ', '=']);
    tag.trim().to_owned()
}

fn first_number(text: &str) -> Option<u32> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    text[..digits.unwrap_or(text.len())].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "  Storage Changer /dev/sg1:2 Drives, 5 Slots ( 1 Import/Export )
Data Transfer Element 0:Full (Storage Element 2 Loaded):VolumeTag = E01002L8
Data Transfer Element 1:Empty
      Storage Element 1:Full :VolumeTag=E01001L8
      Storage Element 2:Empty
      Storage Element 3:Full :VolumeTag=CLN001L1
      Storage Element 4:Full :VolumeTag=E01004L8
      Storage Element 5 IMPORT/EXPORT:Empty
";

    #[test]
    fn what_mtx_prints_is_read() {
        let found = Inventory::parse(STATUS);
        let tag = |text: &str| Some(text.to_owned());
        assert_eq!(found.drive, Some(("E01002L8".to_owned(), Some(2))));
        let slots = [
            (1, tag("E01001L8")),
            (2, None),
            (3, tag("CLN001L1")),
            (4, tag("E01004L8")),
            (5, None),
        ];
        assert_eq!(found.slots, slots);
        assert!(found.drive_has("E01002L8") && !found.drive_has("E01001L8"));
        assert_eq!(found.slot_of("E01001L8"), Some(1));
        // Not a cleaning medium, and not one before.
        assert_eq!(found.next_slot(), Some(4));
        assert_eq!(
            (found.free_slot(Some(2)), found.free_slot(None)),
            (Some(2), Some(2))
        );
        assert_eq!(bare("a-003.tar.zst.age"), "a-003");
    }

    #[test]
    fn text_of_another_program_is_no_medium() {
        for text in [
            "",
            "Storage Element",
            "Storage Element x:Full",
            "Data Transfer Element 0:Full",
        ] {
            let found = Inventory::parse(text);
            assert_eq!(
                (found.slot_of("a"), found.next_slot()),
                (None, None),
                "{text}"
            );
        }
    }
}
