"""Forecasts of time series."""

from __future__ import annotations

from typing import Any

from benchmarks.compatibility.session import Session


def _series(length: int = 400) -> Any:
    import numpy as np

    steps = np.arange(length, dtype=np.float32)
    noise = np.random.default_rng(0).normal(0, 0.1, length).astype(np.float32)
    return np.sin(steps / 6) + 0.01 * steps + noise


def neuralforecast(session: Session) -> Any:
    """Train N-HiTS on one series."""
    import pandas as pd
    from neuralforecast import NeuralForecast
    from neuralforecast.models import NHITS

    values = _series()
    dates = pd.date_range("2020-01-01", periods=len(values), freq="D")
    frame = pd.DataFrame({"unique_id": "one", "ds": dates, "y": values})
    options = session.trainer_options("enable_checkpointing")
    model = NHITS(h=12, input_size=24, max_steps=120, random_seed=1, **options)
    forecast = NeuralForecast([model], freq="D")
    forecast.fit(frame)
    return forecast.models[0]


def darts(session: Session) -> Any:
    """Train N-BEATS on one series."""
    from darts import TimeSeries
    from darts.models import NBEATSModel

    options = session.trainer_options("enable_checkpointing")
    model = NBEATSModel(
        24, 12, n_epochs=4, num_blocks=1, num_layers=2, layer_widths=64, random_state=1, pl_trainer_kwargs=options
    )
    model.fit(TimeSeries.from_values(_series()))
    return model.model


def pytorch_forecasting(session: Session) -> Any:
    """Train a Temporal Fusion Transformer on two series."""
    import lightning.pytorch as pl
    import pandas as pd
    from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet

    values = _series(200)
    frame = pd.concat(
        pd.DataFrame({"group": name, "time": range(len(values)), "value": values * scale})
        for name, scale in (("a", 1.0), ("b", 2.0))
    ).reset_index(drop=True)
    data = TimeSeriesDataSet(
        frame,
        time_idx="time",
        target="value",
        group_ids=["group"],
        max_encoder_length=24,
        max_prediction_length=6,
        time_varying_unknown_reals=["value"],
    )
    pl.seed_everything(1)
    model = TemporalFusionTransformer.from_dataset(data, hidden_size=8, attention_head_size=1, dropout=0.1)
    trainer = pl.Trainer(**session.trainer_options(max_epochs=2, gradient_clip_val=0.1))
    trainer.fit(model, data.to_dataloader(train=True, batch_size=16, num_workers=0))
    return model


def gluonts(session: Session) -> Any:
    """Train DeepAR on one series."""
    import lightning.pytorch as pl
    from gluonts.dataset.common import ListDataset
    from gluonts.torch.model.deepar import DeepAREstimator

    pl.seed_everything(1)
    options = session.trainer_options("enable_checkpointing", "accelerator", "devices", max_epochs=2)
    estimator = DeepAREstimator(
        freq="D", prediction_length=6, context_length=24, num_batches_per_epoch=50, trainer_kwargs=options
    )
    predictor = estimator.train(ListDataset([{"start": "2020-01-01", "target": _series()}], freq="D"))
    return predictor.prediction_net
