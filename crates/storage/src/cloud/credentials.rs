//! Credentials of a profile of AWS's own tools: keys in its files, a command that prints them, or the token of a web identity.
//!
//! A profile that gets its credentials in another way is refused: without it, those of the host would be used, which may belong to
//! another account.

use super::{
    environment::{CloudEnvironment, check_plain},
    profile::AwsProfile,
};
use async_trait::async_trait;
use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use fullbore_platform::queue::Locked;
use jiff::{Timestamp, ToSpan};
use object_store::{
    CredentialProvider,
    aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential},
};
use serde::Deserialize;
use std::{
    io::Read,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

/// Keys of a profile that say where its credentials come from, in ways that are not supported.
const ELSEWHERE: [&str; 6] = [
    "sso_session",
    "sso_start_url",
    "source_profile",
    "credential_source",
    "login_session",
    "role_arn",
];

/// Bytes that a command may print.
const MAX_PRINTED_BYTES: u64 = 64 << 10;

/// Minutes before credentials end when they are asked for anew.
const RENEWED_MINUTES: i64 = 5;

/// Credentials of the environment go before those of a profile, and those before the ones of the host.
///
/// # Errors
/// [`ErrorKind::Usage`] for a profile whose credentials come from elsewhere.
pub(super) fn with_profile(
    builder: AmazonS3Builder,
    environment: &CloudEnvironment,
    profile: &AwsProfile,
) -> Result<AmazonS3Builder> {
    // The order is that of the tools of AWS: the environment comes before the profile.
    if environment.get("AWS_ACCESS_KEY_ID").is_some() {
        return Ok(builder);
    }
    if profile.get("aws_access_key_id").is_some() {
        let keys = ProfileCredentials(environment.clone());
        return Ok(builder.with_credentials(Arc::new(keys)));
    }
    if let Some(command) = profile.get("credential_process") {
        let printed = PrintedCredentials::new(profile.name(), command);
        return Ok(builder.with_credentials(Arc::new(printed)));
    }
    let token_file = profile.get("web_identity_token_file");
    if let (Some(file), Some(role)) = (token_file, profile.get("role_arn")) {
        if environment.get("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() {
            return Ok(builder);
        }
        return Ok(builder
            .with_config(AmazonS3ConfigKey::WebIdentityTokenFile, file)
            .with_config(AmazonS3ConfigKey::RoleArn, role));
    }
    match ELSEWHERE.iter().find(|key| profile.get(key).is_some()) {
        None => Ok(builder),
        Some(key) => Err(unsupported(profile.name(), key)),
    }
}

fn unsupported(profile: &str, key: &str) -> Error {
    let message = format!("cannot use the AWS profile {}", quoted(profile.as_bytes()));
    Error::new(ErrorKind::Usage, message)
        .because(format!("it takes its credentials from {key}"))
        .hint(
            "have AWS's own tool print them: credential_process = aws configure export-credentials --profile NAME --format process, in \
             another profile that AWS_PROFILE names",
        )
}

fn failed(why: String) -> object_store::Error {
    object_store::Error::Generic {
        store: "S3",
        source: why.into(),
    }
}

/// The keys of a profile, read anew for each request: other tools renew them in the file while a backup runs.
#[derive(Debug)]
struct ProfileCredentials(CloudEnvironment);

#[async_trait]
impl CredentialProvider for ProfileCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let profile = AwsProfile::of(&self.0).map_err(|error| failed(error.line()))?;
        let token = profile.get("aws_session_token").map(str::to_owned);
        checked(AwsCredential {
            key_id: needed_value("aws_access_key_id", &profile)?,
            secret_key: needed_value("aws_secret_access_key", &profile)?,
            token,
        })
    }
}

fn needed_value(key: &str, profile: &AwsProfile) -> object_store::Result<String> {
    let value = profile.get(key).map(str::to_owned);
    value.ok_or_else(|| failed(format!("the AWS profile has no {key}")))
}

/// Credentials that can stand in a header.
fn checked(credential: AwsCredential) -> object_store::Result<Arc<AwsCredential>> {
    let token = credential.token.as_deref().unwrap_or_default();
    for value in [&*credential.key_id, &*credential.secret_key, token] {
        check_plain(value)
            .map_err(|why| failed(format!("a key of the AWS profile cannot be used: {why}")))?;
    }
    Ok(Arc::new(credential))
}

/// Credentials that a command prints, until shortly before they end.
struct PrintedCredentials {
    profile: String,
    command: String,
    kept: Mutex<Option<KeptCredential>>,
}

#[derive(Clone)]
struct KeptCredential {
    credential: Arc<AwsCredential>,
    /// When they are to be asked for anew; `None` for never.
    until: Option<Timestamp>,
}

impl std::fmt::Debug for PrintedCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrintedCredentials({:?})", self.profile)
    }
}

/// The answer of `credential_process`, as AWS's own tools define it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrintedKeys {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

impl PrintedCredentials {
    fn new(profile: &str, command: &str) -> Self {
        Self {
            profile: profile.to_owned(),
            command: command.to_owned(),
            kept: Mutex::default(),
        }
    }

    fn kept(&self) -> Option<Arc<AwsCredential>> {
        let kept = self.kept.locked().clone()?;
        let is_good = kept.until.is_none_or(|until| Timestamp::now() < until);
        is_good.then_some(kept.credential)
    }

    /// Reads the keys that the command printed. Its words are not repeated: they may be secrets.
    fn read(&self, printed: &[u8]) -> object_store::Result<KeptCredential> {
        let keys: PrintedKeys = serde_json::from_slice(printed)
            .ok()
            .filter(|keys: &PrintedKeys| keys.version == 1)
            .ok_or_else(|| self.failed("it printed no credentials of version 1"))?;
        let credential = checked(AwsCredential {
            key_id: keys.access_key_id,
            secret_key: keys.secret_access_key,
            token: keys.session_token,
        })?;
        let until = match &keys.expiration {
            Some(end) => Some(
                Self::early(end)
                    .ok_or_else(|| self.failed("the end of its credentials is no time"))?,
            ),
            None => None,
        };
        Ok(KeptCredential { credential, until })
    }

    /// Returns when credentials are asked for anew that end at a time of RFC 3339.
    fn early(end: &str) -> Option<Timestamp> {
        let end: Timestamp = end.parse().ok()?;
        end.checked_sub(RENEWED_MINUTES.minutes()).ok()
    }

    fn failed(&self, why: &str) -> object_store::Error {
        failed(format!(
            "credential_process of the AWS profile {} failed: {why}",
            quoted(self.profile.as_bytes())
        ))
    }
}

/// Runs a command line. Its errors go where those of this process go.
fn printed_by(command: &str) -> std::io::Result<(Vec<u8>, bool)> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .env_remove("FULLBORE_PASSPHRASE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut printed = Vec::new();
    if let Some(output) = child.stdout.take() {
        output.take(MAX_PRINTED_BYTES).read_to_end(&mut printed)?;
    }
    Ok((printed, child.wait()?.success()))
}

#[async_trait]
impl CredentialProvider for PrintedCredentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        if let Some(credential) = self.kept() {
            return Ok(credential);
        }
        let command = self.command.clone();
        let run = tokio::task::spawn_blocking(move || printed_by(&command)).await;
        let run = run.map_err(|error| self.failed(&error.to_string()))?;
        let (printed, is_success) = run.map_err(|error| self.failed(&error.to_string()))?;
        if !is_success {
            return Err(self.failed("its exit code is not 0"));
        }
        let kept = self.read(&printed)?;
        let credential = kept.credential.clone();
        *self.kept.locked() = Some(kept);
        Ok(credential)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn profile(text: &str) -> (tempfile::TempDir, CloudEnvironment) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(".aws")).unwrap();
        fs::write(
            dir.path().join(".aws/config"),
            format!("[profile p]\n{text}\n"),
        )
        .unwrap();
        let home = dir.path().to_str().unwrap().to_owned();
        let variables = [
            ("HOME".to_owned(), home),
            ("AWS_PROFILE".to_owned(), "p".to_owned()),
        ];
        (dir, CloudEnvironment::of(variables))
    }

    #[test]
    fn a_profile_with_credentials_from_elsewhere_is_refused_and_not_skipped() {
        for key in ELSEWHERE {
            let (_dir, environment) = profile(&format!("{key} = x\nregion = eu-west-1"));
            let named = AwsProfile::of(&environment).unwrap();
            let error = with_profile(AmazonS3Builder::new(), &environment, &named).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{key}");
            assert!(error.line().contains(key), "{}", error.line());
        }
        let (_dir, environment) = profile("region = eu-west-1");
        let named = AwsProfile::of(&environment).unwrap();
        with_profile(AmazonS3Builder::new(), &environment, &named).unwrap();
    }

    #[test]
    fn a_command_of_a_profile_is_asked_once_until_its_credentials_end() {
        let dir = tempfile::tempdir().unwrap();
        let count = dir.path().join("count");
        let command = |end: &str| {
            format!(
                "echo x >>{}; echo '{{\"Version\":1,\"AccessKeyId\":\"k\",\"SecretAccessKey\":\"s\"{end}}}'",
                count.display()
            )
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let asked = || {
            fs::read_to_string(&count)
                .unwrap_or_default()
                .lines()
                .count()
        };
        let twice = |end: &str| {
            let printed = PrintedCredentials::new("p", &command(end));
            for _ in 0..2 {
                let credential = runtime.block_on(printed.get_credential()).unwrap();
                assert_eq!((&*credential.key_id, &*credential.secret_key), ("k", "s"));
            }
            assert!(!format!("{printed:?}").contains("AccessKey"));
        };
        twice("");
        assert_eq!(asked(), 1);
        twice(",\"Expiration\":\"2020-01-01T00:00:00Z\"");
        assert_eq!(asked(), 3, "they ended long ago");
        for bad in [
            "exit 3",
            "echo hunter2",
            "echo '{\"Version\":2}'",
            "/no/such/program",
        ] {
            let printed = PrintedCredentials::new("p", bad);
            let error = runtime.block_on(printed.get_credential()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("credential_process"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
