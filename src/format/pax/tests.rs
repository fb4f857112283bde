//! What is written is read back, and nothing that is read does harm.
