//! Objects that pods refer to: config maps, secrets, tokens, services, claims.
