//! The result of a drill, and its place in the repository.

use fullbore_format::{
    error::{Error, ErrorKind, Result},
    json::{elements_of, parse_counted},
    layout::drills_of,
    root::SourceInfo,
};
use fullbore_storage::{Objects, PutIf};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The result of a drill.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DrillRecord {
    /// ID of the backup.
    pub id: String,
    /// Source of the backup,
    pub source: SourceInfo,
    /// and the same in words.
    pub source_text: String,
    /// Identifier of the cluster's system.
    pub system_identifier: String,
    /// When the drill ended, as RFC 3339.
    pub time: String,
    /// The host of the drill.
    pub host: String,
    /// The target of the recovery, as it was given; absent for the end of the backup's WAL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery_target: Option<String>,
    /// Where recovery stopped, in the server's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<String>,
    /// Seconds of the restore.
    pub restore_seconds: f64,
    /// Seconds from the start of the server until it accepted queries.
    pub replay_seconds: f64,
    /// The query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Seconds of the query.
    pub query_seconds: f64,
    /// Rows of its answer.
    pub row_count: u64,
    /// Whether pg_amcheck ran; then it found nothing, unless there is an error.
    pub amcheck: bool,
    /// Version of the server of the backup.
    pub backup_version: String,
    /// Version of the server of the drill.
    pub server_version: String,
    /// Version of fullbore.
    pub fullbore_version: String,
    /// Why the drill failed; absent if it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl DrillRecord {
    /// Seconds from the start of the restore until the server accepted queries.
    pub fn seconds_to_queries(&self) -> f64 {
        self.restore_seconds + self.replay_seconds
    }

    /// Stores the result.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn store(&self, objects: &dyn Objects) -> Result<()> {
        let time = self.time.parse::<Timestamp>().unwrap_or_default();
        let name = time.strftime("%Y%m%dT%H%M%S.%3fZ");
        let Some(dir) = drills_of(&self.system_identifier) else {
            let message =
                "cannot store the result of the drill: the backup has no system identifier";
            return Err(Error::corrupt(message));
        };
        let bytes = serde_json::to_vec(self)
            .map_err(|e| Error::new(ErrorKind::Bug, "cannot write JSON").because(e))?;
        objects
            .put(&format!("{dir}/{name}.json"), &bytes, &PutIf::Absent)
            .map(drop)
    }

    /// Returns the newest result of a system's drills.
    ///
    /// # Errors
    /// Those of the storage; [`ErrorKind::Corrupt`] if it cannot be read.
    pub fn newest(objects: &dyn Objects, system_identifier: &str) -> Result<Option<Self>> {
        Ok(Self::latest(objects, system_identifier, 1)?.pop())
    }

    /// Returns the newest results of a system's drills, `most` at most, the newest first.
    ///
    /// # Errors
    /// As [`DrillRecord::newest`].
    pub fn latest(
        objects: &dyn Objects,
        system_identifier: &str,
        most: usize,
    ) -> Result<Vec<Self>> {
        let Some(dir) = drills_of(system_identifier) else {
            return Ok(Vec::new());
        };
        let listed = objects.list(&dir)?;
        let mut keys: Vec<_> = listed.into_iter().map(|object| object.key).collect();
        keys.sort_unstable();
        let newest = keys.iter().rev().take(most);
        let read = newest.filter_map(|key| Self::read(objects, key).transpose());
        read.collect()
    }

    fn read(objects: &dyn Objects, key: &str) -> Result<Option<Self>> {
        let Some((bytes, _)) = objects.get(key)? else {
            return Ok(None);
        };
        let parsed = parse_counted(&bytes, elements_of(bytes.len()));
        parsed
            .map(Some)
            .map_err(|why| Error::corrupt(format!("cannot read {key:?}")).because(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_storage::MemoryObjects;

    #[test]
    fn the_newest_result_of_a_system_is_found() {
        let objects = MemoryObjects::default();
        assert_eq!(DrillRecord::newest(&objects, "7").unwrap(), None);
        for (system, time, rows) in [
            ("7", "2026-11-21T05:45:01.5Z", 1),
            ("7", "2026-11-22T05:45:01Z", 2),
            ("8", "2026-11-23T05:45:01Z", 3),
        ] {
            let record = DrillRecord {
                system_identifier: system.into(),
                time: time.into(),
                row_count: rows,
                ..DrillRecord::default()
            };
            record.store(&objects).unwrap();
        }
        let newest = DrillRecord::newest(&objects, "7").unwrap().unwrap();
        assert_eq!(newest.row_count, 2);
        let both = DrillRecord::latest(&objects, "7", 5).unwrap();
        assert_eq!(
            both.iter().map(|drill| drill.row_count).collect::<Vec<_>>(),
            [2, 1]
        );
        let keys: Vec<_> = objects.list("wal/7").unwrap();
        assert_eq!(keys[0].key, "wal/7/drills/20261121T054501.500Z.json");
    }
}
