//! The variables of the environment that object stores are configured by.
//!
//! A file or a Kubernetes secret often ends with a line feed, so that blanks at both ends of these variables are dropped. All else that
//! cannot be a part of a URL or of a header is refused here: the crate would end this process.

use super::endpoint::checked_endpoint;
use fullbore_format::error::{Error, ErrorKind, Result};
use std::{collections::BTreeMap, fmt};

/// Names of variables for object stores begin with one of these.
const PREFIXES: [&str; 7] = [
    "AWS_",
    "AZURE_",
    "GOOGLE_",
    "FULLBORE_STORAGE_",
    "IDENTITY_",
    "MSI_",
    "STORAGE_EMULATOR_HOST",
];

/// Variables that are URLs end with one of these.
const URLS: [&str; 6] = [
    "_ENDPOINT",
    "_ENDPOINT_URL",
    "_ENDPOINT_URL_S3",
    "_FULL_URI",
    "_AUTHORITY_HOST",
    "_EMULATOR_HOST",
];

/// Variables with the path of a file, or with a document, end with one of these. They may have any signs.
const FREE: [&str; 5] = [
    "_FILE",
    "_CREDENTIALS",
    "SERVICE_ACCOUNT",
    "SERVICE_ACCOUNT_KEY",
    "_SERVICE_ACCOUNT_PATH",
];

/// Variables that name the files with profiles.
const FILES: [&str; 2] = ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"];

/// Variables of the environment. Their values may be secrets: only names are ever printed.
#[derive(Clone, Default)]
pub struct CloudEnvironment(BTreeMap<String, String>);

impl CloudEnvironment {
    /// Returns the variables of this process that are text.
    pub fn of_process() -> Self {
        let variables = std::env::vars_os();
        let as_text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self::of(variables.filter_map(as_text))
    }

    /// Returns an environment of these variables.
    pub fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let trimmed = |(name, value): (String, String)| {
            let value = match is_of_store(&name) {
                true => value.trim().to_owned(),
                false => value,
            };
            (name, value)
        };
        Self(variables.into_iter().map(trimmed).collect())
    }

    /// Refuses variables for object stores with values that cannot be used.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`], with the name of the variable and without its value, which may be a secret.
    pub(super) fn check(&self) -> Result<()> {
        let of_stores = self.0.iter().filter(|(name, _)| is_of_store(name));
        of_stores
            .filter(|(_, value)| !value.is_empty())
            .try_for_each(|(name, value)| check_variable(name, value))
    }

    /// Returns a variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns these variables with this profile of AWS's own tools in place of all that names credentials, a region or an
    /// endpoint of AWS: keys of the environment must not go to the store of another account.
    pub(super) fn with_profile(&self, profile: &str) -> Self {
        let is_kept = |name: &&String| !name.starts_with("AWS_") || FILES.contains(&name.as_str());
        let others = self.0.iter().filter(|(name, _)| is_kept(name));
        let mut variables: BTreeMap<_, _> = others
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        variables.insert("AWS_PROFILE".to_owned(), profile.to_owned());
        Self(variables)
    }

    /// Returns the variables whose names begin with `prefix`, in the order of their names.
    pub(super) fn below<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.0
            .range(prefix.to_owned()..)
            .take_while(move |(name, _)| name.starts_with(prefix))
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

fn is_of_store(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn check_variable(name: &str, value: &str) -> Result<()> {
    let ends_with = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let refused = |why: &str| {
        let message = format!("cannot use the variable {name} of the environment");
        Error::new(ErrorKind::Usage, message).because(why)
    };
    if ends_with(&URLS) {
        return match checked_endpoint(value) {
            Ok(_) => Ok(()),
            // The emulators print it without a scheme.
            Err(_) if name == EMULATOR && checked_endpoint(&format!("http://{value}")).is_ok() => {
                Ok(())
            }
            Err(why) => Err(refused(why).hint("write it as https://HOST or https://HOST:PORT")),
        };
    }
    if !ends_with(&FREE) {
        check_plain(value).map_err(refused)?;
    }
    if name.ends_with("_REGION") || name.ends_with("_ACCOUNT") || name.ends_with("_ACCOUNT_NAME") {
        check_region(value).map_err(refused)?;
    }
    Ok(())
}

/// The address of an emulator of Google's store.
pub(super) const EMULATOR: &str = "STORAGE_EMULATOR_HOST";

/// Refuses values that cannot stand in a header.
pub(super) fn check_plain(value: &str) -> Result<(), &'static str> {
    if value.chars().any(char::is_control) {
        return Err("it has a line feed or another control character in the middle");
    }
    if !value.is_ascii() {
        return Err("it has letters that are not ASCII");
    }
    Ok(())
}

/// Refuses regions and accounts that cannot be a part of the name of a host.
pub(super) fn check_region(value: &str) -> Result<(), &'static str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if value.chars().all(is_plain) {
        return Ok(());
    }
    Err("it has other signs than letters, digits and '-'")
}

impl fmt::Debug for CloudEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_environment_are_not_printed() {
        let variables = [("AWS_SECRET_ACCESS_KEY".to_owned(), "hunter2".to_owned())];
        let environment = CloudEnvironment::of(variables);
        assert_eq!(format!("{environment:?}"), "{\"AWS_SECRET_ACCESS_KEY\"}");
        assert_eq!(environment.get("AWS_SECRET_ACCESS_KEY"), Some("hunter2"));
        assert_eq!(environment.below("AWS_S").count(), 1);
        assert_eq!(environment.below("AWS_T").count(), 0);
    }

    #[test]
    fn a_named_profile_takes_the_place_of_all_variables_but_its_files() {
        let variables = [
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_ENDPOINT_URL", "http://a:1"),
            ("AWS_REGION", "a"),
            ("AWS_CONFIG_FILE", "/c"),
            ("HOME", "/h"),
        ];
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let environment = CloudEnvironment::of(variables.map(own)).with_profile("b");
        assert_eq!(
            format!("{environment:?}"),
            "{\"AWS_CONFIG_FILE\", \"AWS_PROFILE\", \"HOME\"}"
        );
    }

    #[test]
    fn blanks_at_the_ends_are_dropped_and_what_cannot_be_sent_is_refused_by_its_name() {
        let settings_of = |name: &str, value: &str| {
            let environment = CloudEnvironment::of([(name.to_owned(), value.to_owned())]);
            (
                environment.check(),
                environment.get(name).map(str::to_owned),
            )
        };
        let (checked, value) = settings_of("AWS_ACCESS_KEY_ID", " k\r\n");
        checked.unwrap();
        assert_eq!(value.as_deref(), Some("k"));
        assert_eq!(settings_of("HOME", "/a ").1.as_deref(), Some("/a "));
        for (name, good) in [
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:1 "),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/\u{e4}"),
            ("GOOGLE_SERVICE_ACCOUNT_KEY", "{\n\"a\": 1}"),
            ("STORAGE_EMULATOR_HOST", "localhost:1"),
            ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x"),
        ] {
            settings_of(name, good).0.unwrap();
        }
        for (name, bad) in [
            ("AWS_ENDPOINT_URL", "127.0.0.1:9000"),
            ("AWS_ENDPOINT_URL_S3", "https://"),
            ("AZURE_AUTHORITY_HOST", "127.0.0.1:1"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2\nhunter2"),
            ("AWS_SESSION_TOKEN", "hunter2\u{e4}"),
            ("AWS_REGION", "eu central"),
            ("AZURE_STORAGE_ACCOUNT", "a\tb"),
            ("STORAGE_EMULATOR_HOST", "a b"),
        ] {
            let error = settings_of(name, bad).0.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Usage, "{name}");
            assert!(error.line().contains(name), "{}", error.line());
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
