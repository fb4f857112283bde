//! Collects parameters in their order of precedence: the connection string, the service, the
//! environment.

use super::{
    files,
    parse::{self, Given, KEYWORDS, Use},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform as platform;
use std::{
    collections::HashMap,
    env,
    path::{Path, PathBuf},
};

/// The surroundings that a connection depends on, besides its string.
pub struct Environment {
    /// Environment variables by name; those of libpq and `HOME` are used.
    pub variables: HashMap<String, String>,
    /// The operating system's user, who is the default role.
    pub user: Option<String>,
    /// The home directory of that user, used if `HOME` is not set.
    pub home: Option<PathBuf>,
    /// Default socket directories of a server on this machine, in the order of trying.
    pub socket_directories: Vec<PathBuf>,
}

impl Environment {
    /// Returns the environment of this process. Variables that are not UTF-8 are ignored.
    pub fn of_process() -> Self {
        let user = platform::owner::OwnerNames::default().user(platform::user().0);
        Self {
            variables: env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
            user: (!user.is_empty()).then(|| user.to_string()),
            home: platform::owner::home_of(platform::user().0),
            // Debian's directory, then PostgreSQL's own.
            socket_directories: vec!["/var/run/postgresql".into(), "/tmp".into()],
        }
    }

    /// The value of a variable, unless it is empty.
    fn variable(&self, name: &str) -> Option<&str> {
        self.variables
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    /// Path of a file in the user's home directory.
    pub(super) fn at_home(&self, file: &str) -> Option<PathBuf> {
        let home = match self.variable("HOME") {
            Some(home) => PathBuf::from(home),
            None => self.home.clone()?,
        };
        Some(home.join(file))
    }
}

/// Returns all parameters, and the origin of the password. The first source that has a parameter
/// decides.
pub(super) fn collect(text: &str, environment: &Environment) -> Result<(Given, String)> {
    let mut given = parse::parse(text)?;
    let mut origin = if given.contains_key("password") {
        "the connection string".to_owned()
    } else {
        "PGPASSWORD".to_owned()
    };
    if let Some(service) = named(&given, environment, "service", "PGSERVICE") {
        let files = service_files(&given, environment);
        for (name, value) in files::read_service(&service, &files)? {
            if name == "password" && !given.contains_key(name) {
                origin = format!("service {service:?}");
            }
            // `or_insert`: the connection string wins over the service, and the service over the
            // environment.
            given.entry(name).or_insert(value);
        }
    }
    add_variables(&mut given, environment)?;
    if given
        .get("gssencmode")
        .is_some_and(|mode| mode == "require")
    {
        let message = "cannot encrypt a connection with GSSAPI";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok((given, origin))
}

/// Returns a parameter from the string or, if the string does not have it, from a variable; `None`
/// if it is empty.
fn named(given: &Given, environment: &Environment, name: &str, variable: &str) -> Option<String> {
    let value = given.get(name).map(String::as_str);
    let value = value.or_else(|| environment.variable(variable))?;
    (!value.is_empty()).then(|| value.to_owned())
}

/// Returns the service files to read, in order: the user's, then the system's.
fn service_files(given: &Given, environment: &Environment) -> Vec<PathBuf> {
    let own = named(given, environment, "servicefile", "PGSERVICEFILE").map(PathBuf::from);
    let own = own.or_else(|| environment.at_home(".pg_service.conf"));
    // The default directory of Debian's libpq.
    let system = environment
        .variable("PGSYSCONFDIR")
        .unwrap_or("/etc/postgresql-common");
    let system = Path::new(system).join("pg_service.conf");
    own.into_iter().chain([system]).collect()
}

/// Adds the parameters that only the environment has. Variables of ignored parameters are not read.
fn add_variables(given: &mut Given, environment: &Environment) -> Result<()> {
    for (name, variable, becomes) in KEYWORDS {
        if becomes == Use::Ignored || given.contains_key(name) {
            continue;
        }
        if let Some(value) = environment.variable(variable) {
            given.insert(parse::keyword(name)?, value.to_owned());
        }
    }
    Ok(())
}
