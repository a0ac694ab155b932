"""The reference model of a loss scaler, and what pits other scalers against it: AMP208's probe and `scaler_contract`."""
