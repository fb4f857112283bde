//! Prints who stored a WAL segment, in which objects, and which records it has.

use fullbore_engine::wal::{ArchivedSegment, SegmentComparison, StoredFacts, stored_segments};
use fullbore_format::{
    digest::hex,
    error::{Error, ErrorKind, Result},
    text,
    wal::SegmentName,
};
use fullbore_postgres::wal_archive::{RecordsEnd, RecordsSummary};
use fullbore_repository::open::read_repository;
use fullbore_storage::Storages;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{ffi::OsString, io::Write};

/// A segment to show.
#[derive(Debug, Clone)]
pub(super) struct WalShow {
    /// How storages are reached.
    pub storages: Storages,
    /// The repository.
    pub repository: OsString,
    /// The segment.
    pub segment: SegmentName,
    /// Whether to print JSON, one object a line.
    pub json: bool,
}

impl WalShow {
    /// Prints the segment of each object that has it. Returns the exit code: 4 if two contents differ, or one is damaged.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if no object has it; the storage's, and those of `out`.
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<u8> {
        let objects = self.storages.repository_at(&self.repository)?;
        read_repository(&*objects)?;
        let found = stored_segments(&objects, self.segment)?;
        if found.is_empty() {
            let message = format!("could not find {} in {:?}", self.segment, self.repository);
            return Err(Error::new(ErrorKind::NotFound, message)
                .hint("`fullbore wal list REPO` shows what is there"));
        }
        for stored in &found {
            match self.json {
                true => text::json(out, &self.stored_json(stored))?,
                false => self.print(stored, out)?,
            }
        }
        let is_right = found.iter().all(is_right);
        Ok(if is_right { 0 } else { 4 })
    }

    fn stored_json(&self, stored: &ArchivedSegment) -> Value {
        let mut object = json!({
            "type": "wal_segment",
            "segment": self.segment.to_string(),
            "system": stored.system,
            "object": stored.key,
            "object_bytes": stored.object_bytes,
            "run_first_segment": stored.run.0.to_string(),
            "run_last_segment": stored.run.1.to_string(),
            "partial": stored.is_partial,
        });
        match &stored.facts {
            Err(error) => object["error"] = error.line().into(),
            Ok(facts) => add_facts(facts, &mut object),
        }
        object
    }

    fn print(&self, stored: &ArchivedSegment, out: &mut dyn Write) -> Result<()> {
        let partial = if stored.is_partial { " (partial)" } else { "" };
        let mut lines = vec![(
            "segment",
            format!("{}{partial} of system {}", self.segment, stored.system),
        )];
        let (first, last) = stored.run;
        lines.push(("object", stored.key.clone()));
        lines.push((
            "run",
            format!("{first} to {last}, {}", text::bytes(stored.object_bytes)),
        ));
        match &stored.facts {
            Err(error) => lines.push(("error", error.line())),
            Ok(facts) => lines.extend(fact_lines(facts)),
        }
        lines
            .iter()
            .try_for_each(|(name, value)| text::line(out, &format!("{name:<10} {value}")))
    }
}

fn is_right(stored: &ArchivedSegment) -> bool {
    match &stored.facts {
        Ok(facts) => {
            stored.is_partial || !matches!(facts.comparison, SegmentComparison::Differs(_))
        }
        Err(_) => false,
    }
}

fn commit_time(records: &RecordsSummary) -> Option<Timestamp> {
    records
        .last_commit
        .and_then(|micros| Timestamp::from_microsecond(micros).ok())
}

fn add_facts(facts: &StoredFacts, object: &mut Value) {
    object["host"] = facts.by.host.clone().into();
    object["stored_time"] = json!(text::utc_time(facts.by.stored));
    object["bytes"] = facts.segment_bytes.into();
    object["stored_bytes"] = facts.stored_bytes.into();
    object["digest"] = hex(&facts.digest).into();
    object["same_as_first"] = match facts.comparison {
        SegmentComparison::First | SegmentComparison::Same => true.into(),
        SegmentComparison::SameRecords => "records".into(),
        SegmentComparison::Differs(at) => {
            object["differs_at"] = at.to_string().into();
            false.into()
        }
    };
    if let Some(records) = &facts.records {
        object["records"] = records.count.into();
        object["first_record"] = json!(records.first.map(|position| position.to_string()));
        object["last_record"] = json!(records.last.map(|position| position.to_string()));
        object["last_commit_time"] = json!(commit_time(records).map(|time| time.to_string()));
    }
}

fn fact_lines(facts: &StoredFacts) -> Vec<(&'static str, String)> {
    let mut lines = vec![
        ("stored by", facts.by.to_string()),
        (
            "size",
            format!(
                "{}, {} stored",
                text::bytes(facts.segment_bytes),
                text::bytes(facts.stored_bytes)
            ),
        ),
        ("digest", hex(&facts.digest)),
    ];
    if let Some(records) = &facts.records {
        lines.push(("records", records_text(records)));
    }
    match facts.comparison {
        SegmentComparison::First | SegmentComparison::Same => {}
        SegmentComparison::SameRecords => lines.push((
            "note",
            "other bytes than in the first object, behind the same records".to_owned(),
        )),
        SegmentComparison::Differs(at) => lines.push((
            "conflict",
            format!(
                "it differs from the first object from {at} on: two servers wrote one timeline"
            ),
        )),
    }
    lines
}

fn records_text(records: &RecordsSummary) -> String {
    let mut text = text::counted(records.count, "record");
    if let (Some(first), Some(last)) = (records.first, records.last) {
        text.push_str(&format!(", {first} to {last}"));
    }
    if let Some(time) = commit_time(records) {
        text.push_str(&format!(", the last commit at {time}"));
    }
    match &records.end {
        RecordsEnd::Empty(_) | RecordsEnd::Open(..) => text,
        RecordsEnd::Damaged(at) => format!("{text}; no valid record at {at}"),
    }
}
