//! Settings of an object store: `--storage KEY=VALUE` and `FULLBORE_STORAGE_KEY`.
//!
//! No setting is a secret: credentials come from the environment, from files and from the host's own identity.

use super::{
    endpoint::checked_endpoint,
    environment::{CloudEnvironment, check_plain, check_region},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result, quoted},
    text::size,
};
use std::{
    num::{NonZeroU64, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

/// Variables of the environment that hold settings begin with this; the rest is the key, in capitals and with `_` for `-`.
pub const SETTING_VARIABLES: &str = "FULLBORE_STORAGE_";

/// Requests in flight at most where `--connections` is `auto`.
pub const AUTO_CONNECTIONS: usize = 64;

/// Parts of uploads on their way at most: 64 MiB, which fill 1 GB/s at 60 ms for a part.
pub const AUTO_PARTS: usize = 8;

/// The least limit, so that the wait for one part stays short.
const MIN_RATE: NonZeroU64 = NonZeroU64::new(64 << 10).unwrap();

/// How an object store is reached, and what it does with objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CloudSettings {
    /// The URL of the store: `https://host:port`, for Azure with the account if that is a part of the path.
    pub endpoint: Option<String>,
    /// Is the bucket in the path of a URL and not in its host? By default yes where an endpoint is given.
    pub is_path_style: Option<bool>,
    /// The profile of AWS's own tools that the credentials come from. It goes before the variables of the environment.
    pub profile: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// A file of certificates in PEM format that are trusted besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// The class that the store keeps uploaded objects in; small objects that are put are kept in its default class.
    pub storage_class: Option<String>,
    /// How the store encrypts objects.
    pub encryption: Option<ServerEncryption>,
    /// How long the store refuses to delete an object.
    pub retention: Option<ObjectRetention>,
    /// The checksum that goes with every object and part to S3.
    pub checksum: UploadChecksum,
    /// Does the store delete many objects in one request? Some that speak S3's protocol do not.
    pub has_no_batch_delete: bool,
    /// Requests in flight at most; `None` for [`AUTO_CONNECTIONS`].
    pub connections: Option<NonZeroUsize>,
    /// Parts of all uploads that are on their way at most; `None` for [`AUTO_PARTS`]. Each takes 8 MiB of memory or more.
    pub parts_away: Option<NonZeroUsize>,
    /// Bytes that are sent in a second at most.
    pub upload_limit: Option<NonZeroU64>,
    /// Bytes that are received in a second at most.
    pub download_limit: Option<NonZeroU64>,
    /// When and how often requests are tried again.
    pub retries: RetryPolicy,
    /// Time between renewals of a lease, if not [`RENEWAL`](crate::RENEWAL); all that share a repository have the same.
    pub renewal: Option<Duration>,
}

/// Encryption by the store, with keys that it keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerEncryption {
    /// `AES256`, `aws:kms` or `aws:kms:dsse`.
    pub method: String,
    /// The key of the key service, if not its default one. A name, no secret.
    pub key_id: Option<String>,
}

/// The store refuses to delete an object before the time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectRetention {
    /// `COMPLIANCE`: not even an administrator can shorten it. Otherwise `GOVERNANCE`.
    pub is_compliance: bool,
    /// Days from the start of the run.
    pub days: u32,
}

/// Checksums that S3 checks on receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UploadChecksum {
    /// CRC-64/NVME.
    #[default]
    Crc64,
    /// SHA-256, for stores that do not know CRC-64/NVME.
    Sha256,
    /// None, for stores that know neither.
    Off,
}

/// When a request is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries of one request.
    pub tries: u32,
    /// The first pause is shorter than this by chance; each next one may be twice as long.
    pub first_pause: Duration,
    /// No pause is longer, not even one that the store asks for.
    pub longest_pause: Duration,
    /// A request is given up after this time, and a second more for each `SLOWEST_BYTES` of it.
    pub patience: Duration,
}

/// Bytes in a second below which a connection is taken for dead.
pub(super) const SLOWEST_BYTES: u64 = 64 << 10;

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            tries: 10,
            first_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(30),
            patience: Duration::from_secs(60),
        }
    }
}

/// Every key and an example of its value, in the order of the documentation.
pub const SETTING_KEYS: [(&str, &str); 16] = [
    ("endpoint", "https://store.example:9000"),
    ("profile", "offsite"),
    ("path-style", "yes"),
    ("region", "eu-central-1"),
    ("ca-file", "/etc/ssl/store.pem"),
    ("storage-class", "STANDARD_IA"),
    ("encryption", "aws:kms"),
    ("encryption-key-id", "alias/backup"),
    ("retention-mode", "governance"),
    ("retention-days", "30"),
    ("checksum", "crc64"),
    ("batch-delete", "no"),
    ("tries", "10"),
    ("connections", "16"),
    ("limit-upload", "10M"),
    ("limit-download", "10M"),
];

impl CloudSettings {
    /// Returns the settings of the environment.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a variable that begins with [`SETTING_VARIABLES`] and is no setting, or has a bad value.
    pub fn from_environment(environment: &CloudEnvironment) -> Result<Self> {
        let mut settings = Self::default();
        for (name, value) in environment.below(SETTING_VARIABLES) {
            let key = name[SETTING_VARIABLES.len()..].to_ascii_lowercase();
            settings.set(&key.replace('_', "-"), value)?;
        }
        Ok(settings)
    }

    /// Takes over one `KEY=VALUE`.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub fn set_pair(&mut self, pair: &str) -> Result<()> {
        match pair.split_once('=') {
            Some((key, value)) => self.set(key, value),
            None => Err(usage(
                "cannot use a setting of the storage that has no '='".to_owned(),
            )),
        }
    }

    /// Takes over one setting.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`]. The value of an unknown key is not repeated: it may be a secret that does not belong there.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let bad = |expected: &str| {
            let value = quoted(value.as_bytes());
            usage(format!(
                "cannot use {value} as {key} of the storage: {expected}"
            ))
        };
        let value = value.trim();
        if value.is_empty() {
            return Err(bad("it is empty"));
        }
        if key != "ca-file" {
            check_plain(value).map_err(bad)?;
        }
        let text = || Some(value.to_owned());
        match key {
            "endpoint" => self.endpoint = Some(checked_endpoint(value).map_err(bad)?),
            "profile" => self.profile = text(),
            "path-style" => self.is_path_style = Some(yes_or_no(value).map_err(bad)?),
            "region" => {
                check_region(value).map_err(bad)?;
                self.region = text();
            }
            "ca-file" => self.ca_file = Some(PathBuf::from(value)),
            "storage-class" => self.storage_class = text(),
            "encryption" => match value {
                "AES256" | "aws:kms" | "aws:kms:dsse" => {
                    self.encryption.get_or_insert_with(kms).method = value.to_owned();
                }
                _ => return Err(bad("AES256, aws:kms or aws:kms:dsse is expected")),
            },
            "encryption-key-id" => self.encryption.get_or_insert_with(kms).key_id = text(),
            "retention-mode" => match value.to_ascii_lowercase().as_str() {
                "governance" => self.retention_mut().is_compliance = false,
                "compliance" => self.retention_mut().is_compliance = true,
                _ => return Err(bad("governance or compliance is expected")),
            },
            "retention-days" => {
                let days = value
                    .parse()
                    .ok()
                    .filter(|days| (1..=36_500).contains(days));
                self.retention_mut().days = days.ok_or_else(|| bad("1 to 36500 is expected"))?;
            }
            "checksum" => {
                self.checksum = match value {
                    "crc64" => UploadChecksum::Crc64,
                    "sha256" => UploadChecksum::Sha256,
                    "none" => UploadChecksum::Off,
                    _ => return Err(bad("crc64, sha256 or none is expected")),
                };
            }
            "batch-delete" => self.has_no_batch_delete = !yes_or_no(value).map_err(bad)?,
            "tries" => {
                let tries = value.parse().ok().filter(|tries| (1..=100).contains(tries));
                self.retries.tries = tries.ok_or_else(|| bad("1 to 100 is expected"))?;
            }
            "connections" => {
                let number = value
                    .parse()
                    .map_err(|_| bad("a number above 0 is expected"));
                self.connections = Some(number?);
            }
            "limit-upload" => self.upload_limit = Some(rate(value).map_err(bad)?),
            "limit-download" => self.download_limit = Some(rate(value).map_err(bad)?),
            // For tests, and in no documentation: one host with another time would take the others for dead.
            "renewal-millis" => {
                let millis = value
                    .parse()
                    .ok()
                    .filter(|millis| (50..=60_000).contains(millis));
                let millis = millis.ok_or_else(|| bad("50 to 60000 is expected"))?;
                self.renewal = Some(Duration::from_millis(millis));
            }
            _ => return Err(unknown_key(key)),
        }
        Ok(())
    }

    fn retention_mut(&mut self) -> &mut ObjectRetention {
        self.retention.get_or_insert(ObjectRetention {
            is_compliance: false,
            days: 0,
        })
    }

    /// Refuses settings that need others.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`].
    pub fn check(&self) -> Result<()> {
        if self.retention.is_some_and(|retention| retention.days == 0) {
            return Err(usage(
                "retention-mode of the storage needs retention-days".to_owned(),
            ));
        }
        let key_id = self
            .encryption
            .as_ref()
            .filter(|encryption| encryption.key_id.is_some());
        if key_id.is_some_and(|encryption| encryption.method == "AES256") {
            return Err(usage(
                "encryption-key-id of the storage needs encryption=aws:kms".to_owned(),
            ));
        }
        Ok(())
    }
}

fn usage(what: String) -> Error {
    Error::new(ErrorKind::Usage, what)
}

fn kms() -> ServerEncryption {
    ServerEncryption {
        method: "aws:kms".to_owned(),
        key_id: None,
    }
}

fn yes_or_no(value: &str) -> Result<bool, &'static str> {
    match value {
        "yes" | "true" | "1" => Ok(true),
        "no" | "false" | "0" => Ok(false),
        _ => Err("yes or no is expected"),
    }
}

/// Reads bytes a second.
fn rate(value: &str) -> Result<NonZeroU64, &'static str> {
    let rate = size::parse(value).ok().and_then(NonZeroU64::new);
    rate.filter(|rate| *rate >= MIN_RATE)
        .ok_or("at least 64K is expected")
}

fn unknown_key(key: &str) -> Error {
    let known = SETTING_KEYS.map(|(key, _)| key).join(", ");
    let message = format!("the storage has no setting {}", quoted(key.as_bytes()));
    let is_secret = ["secret", "password", "token", "access-key", "credential"]
        .iter()
        .any(|word| key.replace('_', "-").contains(word));
    if is_secret {
        return usage(message).hint(
            "give credentials in the environment or in the files of the provider's own tools, as the guide shows",
        );
    }
    usage(message).hint(format!("settings are {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_taken_from_an_option_and_from_the_environment() {
        let mut by_option = CloudSettings::default();
        let mut variables = Vec::new();
        for (key, value) in SETTING_KEYS {
            let before = by_option.clone();
            by_option.set_pair(&format!("{key}={value}")).unwrap();
            if !["checksum", "tries", "retention-mode"].contains(&key) && key != "encryption" {
                assert_ne!(by_option, before, "{key} changes something");
            }
            let name = key.replace('-', "_").to_ascii_uppercase();
            variables.push((format!("{SETTING_VARIABLES}{name}"), value.to_owned()));
        }
        by_option.check().unwrap();
        let environment = CloudEnvironment::of(variables);
        assert_eq!(
            CloudSettings::from_environment(&environment).unwrap(),
            by_option
        );
        assert_eq!(by_option.retention.unwrap().days, 30);
        assert!(by_option.has_no_batch_delete);
    }

    #[test]
    fn a_setting_with_a_bad_value_is_refused() {
        for pair in [
            "endpoint=store:9000",
            "endpoint=https://",
            "endpoint=https://me:word@store",
            "path-style=maybe",
            "encryption=rot13",
            "retention-mode=ever",
            "retention-days=0",
            "checksum=md5",
            "tries=0",
            "region=",
            "region=eu central",
            "storage-class=a\nb",
            "endpoint=http://:9000",
            "region",
        ] {
            let error = CloudSettings::default().set_pair(pair).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{pair}");
        }
        for pairs in [
            vec!["retention-mode=governance"],
            vec!["encryption-key-id=k", "encryption=AES256"],
        ] {
            let mut settings = CloudSettings::default();
            pairs
                .iter()
                .for_each(|pair| settings.set_pair(pair).unwrap());
            assert_eq!(
                settings.check().unwrap_err().kind,
                ErrorKind::Usage,
                "{pairs:?}"
            );
        }
    }

    #[test]
    fn a_secret_among_the_settings_is_refused_and_not_repeated() {
        for key in [
            "secret-access-key",
            "AWS_SESSION_TOKEN",
            "account-key-password",
        ] {
            let error = CloudSettings::default().set(key, "hunter2").unwrap_err();
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
