//! What the command line says of repositories: which one may be used although it is not known, or is clear beside a key.

/// Which repositories a command may use.
#[derive(Debug, Clone, Default)]
pub struct RepositoryTrust {
    /// Fingerprints that the keys of encrypted repositories have to have, if there are any.
    pub expected_keys: Vec<String>,
    /// Does the command take the repository that it finds for the one that is meant, whatever was there before?
    pub accepts_others: bool,
    /// Clear repositories beside a key.
    pub clear: ClearUse,
}

/// May a command use a clear repository, although it was given a key?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClearUse {
    /// No: the key would have opened nothing.
    #[default]
    Refused,
    /// Its user has decided so.
    Decided,
    /// The command uses several repositories, and calls `check_key_use` when all are open.
    OneOfSeveral,
}
