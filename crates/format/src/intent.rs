//! Intents: the documents by which backups under way announce themselves.

use super::layout::INTENTS;
use serde::{Deserialize, Serialize};

/// A backup under way: who makes it, and which backups it may refer to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Intent {
    /// The backup.
    pub id: String,
    /// The machine.
    pub host: String,
    /// The host that the backup is of; empty if it is not known, or the repository is encrypted.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The boot id of the machine.
    pub boot: String,
    /// The process.
    pub pid: u32,
    /// When the backup began, RFC 3339 in UTC.
    pub time: String,
    /// The backups it is compared with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<String>,
}

/// The key of an intent.
pub fn intent_key(id: &str) -> String {
    format!("{INTENTS}/{id}.json")
}
